"""The way to the store: commands in, replies out, over one server or the nodes of a cluster.

Commands are packed by hand and written at once: the library's pipelines cost several times as much
for each call. Its pools, its parser and its picture of a cluster are used.

Nothing is tried twice, but what a server refused unread: a script that it does not know is loaded
and called again, and a command that belongs to another node is sent there. Whether something else
may happen twice only its caller knows.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from hiredis import pack_command
from redis.asyncio import BlockingConnectionPool, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    ConnectionError,  # noqa: A004 - the library's name, and its meaning
    MovedError,
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

__all__ = [
    "COMMAND_TIMEOUT_S",
    "Argument",
    "Command",
    "LateTimeoutError",
    "Reply",
    "Script",
    "StoreLink",
    "StoreMisfitError",
    "is_cluster",
    "open_link",
]

CONNECT_TIMEOUT_S = 1.0
COMMAND_TIMEOUT_S = 2.0
# A time-out that is noticed so much later was this process's fault: the answer may have been there.
LATE_S = 0.25
# To a server, or to each node of a cluster.
CONNECTIONS_MAX = 32

# `redis+cluster://` and `rediss+cluster://`.
_CLUSTER = "+cluster"
# Where a command's key stands, if it is not the first argument; 0: it has none, and goes where its
# neighbour goes.
_KEY_AT = {
    "EVALSHA": 3,
    "INFO": 0,
    "TIME": 0,
    "XGROUP": 2,
    "XREADGROUP": -2,
}
_ANY_KEY: Argument = ""
# What a node says of keys that it does not have, or not any more, or not yet.
_ELSEWHERE = (AskError, ClusterDownError, TryAgainError)  # a `MovedError` is an `AskError`

Argument = bytes | str | int
Command = tuple[Argument, ...]
Reply = Any


class LateTimeoutError(TimeoutError):
    """The time was up, and this process was too busy to see whether there was an answer."""


class StoreMisfitError(RedisError):
    """The store is of another kind, or divided otherwise, than the settings say."""


class Script:
    """A script under the server's own name for it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._sha = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - the server's own name

    def call(self, keys: Sequence[Argument], arguments: Iterable[Argument]) -> Command:
        """The command that runs it; all `keys` are on one node."""
        return ("EVALSHA", self._sha, len(keys), *keys, *arguments)


class StoreLink(ABC):
    """Carries commands to the store, and loads `scripts` where they are missing."""

    def __init__(self, scripts: Iterable[Script] = ()) -> None:
        self._scripts = tuple(scripts)

    async def exchange(self, commands: Sequence[Command], *, kept: bool = False) -> list[Reply]:
        """Send all in one write, and give their replies; some may be a `ResponseError`.

        On a cluster it is one write for each node, and the order is kept for each. Raises
        `RedisError` or `OSError`, at the latest after `COMMAND_TIMEOUT_S`; anything may have
        happened then.

        `kept`: over a connection that is kept for such callers, and not asked whether it is still good,
        which costs more than the exchange. They try again when it turns out not to be; what the server
        closed while nothing was said is opened anew.
        """
        if not commands:
            return []
        due = asyncio.get_running_loop().time() + COMMAND_TIMEOUT_S
        try:
            async with asyncio.timeout_at(due):
                return await self._exchange(commands, kept=kept)
        except TimeoutError as error:
            if asyncio.get_running_loop().time() > due + LATE_S:
                raise LateTimeoutError from error
            raise

    async def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """As `exchange`, where a command that is refused raises, too."""
        replies = await self.exchange(commands)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return replies

    @abstractmethod
    async def _exchange(self, commands: Sequence[Command], *, kept: bool) -> list[Reply]: ...

    @abstractmethod
    async def close(self) -> None:
        """Give back connections."""

    async def _converse(
        self, connection: AbstractConnection, commands: Sequence[Command]
    ) -> list[Reply]:
        try:
            if _is_cut(connection):
                await connection.disconnect(nowait=True)
            replies = await _round(connection, commands)
            unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if unknown:
                load: list[Command] = [("SCRIPT", "LOAD", script.text) for script in self._scripts]
                again = await _round(connection, [*load, *(commands[i] for i in unknown)])
                for i, reply in zip(unknown, again[len(load) :], strict=True):
                    replies[i] = reply
        except BaseException:
            # Also when cancelled: replies that nobody read must not answer the next command.
            await connection.disconnect(nowait=True)
            raise
        return replies


def is_cluster(url: str) -> bool:
    """Whether the URL names a node of a cluster."""
    return url.partition("://")[0].endswith(_CLUSTER)


def open_link(url: str, scripts: Iterable[Script] = ()) -> StoreLink:
    """A link to `redis://host:port/db`, `rediss://…`, `unix:///path`, or to a cluster.

    `redis+cluster://host:port` and `rediss+cluster://…` name any node of the cluster, which names the
    others. Connects when first used. Raises `ValueError` for a URL of another kind.
    """
    if is_cluster(url):
        return _ClusterLink(url.replace(_CLUSTER, "", 1), scripts)
    return _ServerLink(url, scripts)


class _ServerLink(StoreLink):
    def __init__(self, url: str, scripts: Iterable[Script]) -> None:
        super().__init__(scripts)
        self._pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS_MAX,
            timeout=COMMAND_TIMEOUT_S,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._kept: AbstractConnection | None = None

    async def _exchange(self, commands: Sequence[Command], *, kept: bool) -> list[Reply]:
        connection: AbstractConnection | None = None
        if kept:
            connection, self._kept = self._kept, None
        if connection is None:
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            replies = await self._converse(connection, commands)
        except BaseException:
            await self._pool.release(connection)
            raise
        if kept and self._kept is None:
            self._kept = connection
        else:
            await self._pool.release(connection)
        if any(isinstance(reply, (MovedError, ClusterCrossSlotError)) for reply in replies):
            raise StoreMisfitError("the store is a cluster: its URL begins with redis+cluster://")
        return replies

    async def close(self) -> None:
        await self._pool.disconnect()


class _ClusterLink(StoreLink):
    """Which node has which keys is learned at first, and again after every answer that doubts it."""

    def __init__(self, url: str, scripts: Iterable[Script]) -> None:
        super().__init__(scripts)
        self._url = url
        self._cluster = self._open()
        self._known = False
        # One exchange takes a connection of each node at most.
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)

    def _open(self) -> RedisCluster:
        return RedisCluster.from_url(
            self._url,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    async def _exchange(self, commands: Sequence[Command], *, kept: bool) -> list[Reply]:
        del kept  # all of a node's connections are kept
        async with self._room:
            try:
                replies = await self._over_nodes(commands)
                lost = [i for i, reply in enumerate(replies) if isinstance(reply, _ELSEWHERE)]
                if lost:
                    self._known = False
                if any(isinstance(replies[i], MovedError) for i in lost):
                    again = await self._over_nodes([commands[i] for i in lost])
                    for i, reply in zip(lost, again, strict=True):
                        replies[i] = reply
            except RedisClusterException as error:
                # No node answers under the address that it had: ask again where the URL points to.
                await self.close()
                self._cluster = self._open()
                if "not enabled" in str(error):
                    raise StoreMisfitError(
                        "the store is no cluster: its URL begins with redis://"
                    ) from error
                raise ConnectionError(str(error)) from error
            except asyncio.CancelledError:
                # A node that takes connections and says nothing may have been replaced, too.
                self._known = False
                raise
            return replies

    async def _over_nodes(self, commands: Sequence[Command]) -> list[Reply]:
        if not self._known:
            await self._cluster.nodes_manager.initialize()
            self._known = True
        places: dict[ClusterNode, list[int]] = {}
        for i, key in enumerate(_keys_of(commands)):
            node = self._cluster.nodes_manager.get_node_from_slot(self._cluster.keyslot(key))
            places.setdefault(node, []).append(i)
        answers = await asyncio.gather(
            *(self._talk(node, [commands[i] for i in found]) for node, found in places.items()),
            return_exceptions=True,
        )
        replies: list[Reply] = [None] * len(commands)
        for found, answer in zip(places.values(), answers, strict=True):
            if isinstance(answer, BaseException):
                # What is down may have been replaced.
                self._known = False
                raise answer
            for i, reply in zip(found, answer, strict=True):
                replies[i] = reply
        return replies

    async def _talk(self, node: ClusterNode, commands: Sequence[Command]) -> list[Reply]:
        connection = node.acquire_connection()
        try:
            return await self._converse(connection, commands)
        finally:
            node.release(connection)

    async def close(self) -> None:
        self._known = False
        await self._cluster.nodes_manager.aclose()
        await self._cluster.nodes_manager.aclose("startup_nodes")


def _keys_of(commands: Sequence[Command]) -> list[Argument]:
    """The key by which each command is sent; a command without one goes with the one before it.

    Those at the beginning go with the first that has one.
    """
    places = [_KEY_AT.get(str(command[0]), 1) for command in commands]
    key = next((c[place] for c, place in zip(commands, places, strict=True) if place), _ANY_KEY)
    keys = []
    for command, place in zip(commands, places, strict=True):
        key = command[place] if place else key
        keys.append(key)
    return keys


def _is_cut(connection: AbstractConnection) -> bool:
    """Whether the other end has closed it since it was used: a server may, after a time of silence.

    The library tells nobody without asking the socket, which takes longer than the exchange.
    """
    reader = connection._reader  # noqa: SLF001 - see above
    return reader is not None and (reader.at_eof() or reader.exception() is not None)


async def _round(connection: AbstractConnection, commands: Sequence[Command]) -> list[Reply]:
    packed = b"".join(pack_command(command) for command in commands)  # type: ignore[arg-type] # its stub knows no tuples of several
    await connection.send_packed_command(packed, check_health=False)
    return [await _read(connection) for _ in commands]


async def _read(connection: AbstractConnection) -> Reply:
    try:
        # One timeout bounds the whole exchange; one for each reply costs as much as the reply.
        return await connection.read_response(timeout=math.inf)
    except ResponseError as error:
        return error
