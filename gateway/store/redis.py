"""The session store in Redis or Valkey.

A session's write is atomic and fenced. One script call writes many sessions of a partition, and a
commit sends all calls in one go. Time is the server's. Nothing is tried twice here: a write whose answer was
lost may have happened, and the owner then writes everything anew.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence

from redis.exceptions import RedisError, ResponseError

from gateway.store.base import (
    KEEP_S,
    OWNER_SILENCE_S,
    SWEEP_RETRY_S,
    CommitResult,
    GatewayLease,
    OvertakenError,
    SessionOverError,
    SessionWrite,
    StoredSession,
    StoreLateError,
    StoreUnavailableError,
    UsageEvent,
    UsageMarks,
)
from gateway.store.belief import SETTLE_S, StoreBelief
from gateway.store.codec import SCRIPTS, commit_arguments, read_claimed
from gateway.store.meeting import mark_commands, meeting_commands, read_marks
from gateway.store.names import SESSION_ID
from gateway.store.redis_notes import RedisNotes
from mesh.clock import Clock
from mesh.store import USAGE_PAYLOAD_FIELD, Partitions
from mesh.store_link import (
    Argument,
    Command,
    LateTimeoutError,
    Reply,
    Script,
    StoreMisfitError,
    open_link,
)

__all__ = ["RedisStore"]

_log = logging.getLogger("gateway.store")

# Most sessions in one exchange. When the store is back everything live is written at once, and what
# cannot be written within a command's time limit would never be.
COMMIT_SESSIONS_MAX = 256
# And in one script call, during which the server hears nobody else.
SCRIPT_SESSIONS_MAX = 64
# Deadlines are spread over several keys, so that a cluster's nodes share them.
DEADLINE_SHARDS = 8

_SCRIPTS = {name: Script(text) for name, text in SCRIPTS.items()}
_RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)
_FENCED, _MISSING = 1, 2
# Commands about a partition's mark, and their replies.
_MARK_COMMANDS = 4


def _script(name: str, key: str, arguments: Sequence[Argument]) -> Command:
    return _SCRIPTS[name].call((key,), arguments)


def _deadlines_key(shard: int) -> str:
    return f"seedance:deadlines:{shard}"


def _ticket_key(ticket: str) -> bytes:
    # A client may send anything as its ticket, also what has no encoding (CASES 20).
    return b"seedance:ticket:" + ticket.encode(errors="surrogatepass")


def _run_id(about: bytes) -> str:
    found = _RUN_ID.search(about)
    return "" if found is None else found[1].decode()


def _shard_of(session: str) -> int:
    return zlib.crc32(session.encode()) % DEADLINE_SHARDS


class RedisStore(RedisNotes):
    """`SessionStore` on a server at `url`; `resume_ttl_s` is a session's time without a connection.

    `settle_s`: how long a store that was away, or has lost its data, is not believed. With one
    partition all is on one server; a cluster has more of them.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        resume_ttl_s: float,
        settle_s: float = SETTLE_S,
        partitions: Partitions | None = None,
    ) -> None:
        self._link = open_link(url, _SCRIPTS.values())
        self._partitions = partitions or Partitions()
        self._belief = StoreBelief(clock, settle_s)
        self._resume_ttl_s = resume_ttl_s

    async def commit(self, writes: Sequence[SessionWrite], gateway: str = "") -> CommitResult:
        """Write all, in one round trip for each `COMMIT_SESSIONS_MAX`; see the base."""
        refused: list[tuple[str, Reply]] = []
        for start in range(0, len(writes), COMMIT_SESSIONS_MAX):
            batch = writes[start : start + COMMIT_SESSIONS_MAX]
            calls = list(_by_partition(batch, self._partitions))
            commits = [self._commit_command(*call, gateway) for call in calls]
            replies = await self._run([*commits, *self._watch_commands(batch)], kept=True)
            for (_, called), said in zip(calls, replies, strict=False):
                refused += [
                    (w.session, verdict) for w, verdict in zip(called, said, strict=True) if verdict
                ]
        if not refused:
            return CommitResult()
        self._check_errors([verdict for _, verdict in refused if isinstance(verdict, bytes)])
        return CommitResult(
            fenced=frozenset(session for session, verdict in refused if verdict == _FENCED),
            missing=frozenset(session for session, verdict in refused if verdict == _MISSING),
            failed=frozenset(session for session, verdict in refused if isinstance(verdict, bytes)),
        )

    def _commit_command(
        self, partition: int, writes: Sequence[SessionWrite], gateway: str
    ) -> Command:
        keys = map(self._partitions.session_key, [write.session for write in writes])
        return _SCRIPTS["commit"].call(
            [self._partitions.usage_stream(partition), *keys],
            commit_arguments(writes, self._resume_ttl_s, gateway),
        )

    def _check_errors(self, errors: Sequence[bytes]) -> None:
        """Raise `StoreUnavailableError` if what a script said of a session is about the server."""
        for error in errors:
            if _is_of_the_server(error.decode()):
                raise self._away(error.decode())
            _log.error("a session cannot be written: %s", error.decode())

    async def claim(
        self,
        session: str,
        token_hash: str,
        gateway: str = "",
        *,
        above: int = 0,
        bars: bool = False,
    ) -> StoredSession | None:
        """Become the owner; see the base."""
        if not SESSION_ID.fullmatch(session):
            return None
        await self._settled(session)
        reply = await self._claim("resume", session, gateway, token_hash, above)
        if reply[0] == b"unknown":
            await self._sure_it_is_gone(session)
            if bars:  # by the same script: it may have come meanwhile
                reply = await self._claim("bar", session, gateway, token_hash, above)
        if reply[0] == b"denied":
            raise PermissionError
        if reply[0] == b"failed":
            raise StoreUnavailableError("the session cannot be read")
        if reply[0] == b"gone":
            raise SessionOverError
        if reply[0] == b"unknown":
            return None
        return read_claimed(session, *reply[1:])

    async def raise_epoch(self, session: str, above: int, gateway: str) -> int | None:
        """Become the owner of a session that is known; see the base."""
        reply = await self._claim("raise", session, gateway, above=above)
        if reply[0] == b"gone":
            raise SessionOverError
        if reply[0] == b"overtaken":
            raise OvertakenError
        return int(reply[1]) if reply[0] == b"raised" else None

    async def sweep(self, limit: int, gateway: str = "") -> list[StoredSession]:
        """Claim sessions past their deadline; see the base."""
        await self._settled()
        swept: list[StoredSession] = []
        for shard in range(DEADLINE_SHARDS):
            if len(swept) < limit:
                swept += await self._sweep_shard(shard, limit - len(swept), gateway)
        return swept

    async def add_usage(self, events: Sequence[UsageEvent]) -> None:
        """Append to the usage stream; see the base."""
        await self._run([self._usage_command(event) for event in events])

    def _usage_command(self, event: UsageEvent) -> Command:
        stream = self._partitions.usage_stream(self._partitions.of(event.id))
        return ("XADD", stream, "*", "id", event.id, USAGE_PAYLOAD_FIELD, event.payload)

    async def meet_metering(self, lease: GatewayLease) -> UsageMarks:
        """Renew a lease and take the marks; see the base."""
        replies = await self._run(meeting_commands(lease, self._partitions))
        return read_marks(self._partitions, replies, await self._run(mark_commands(lease)))

    async def put_ticket(self, ticket: str, value: bytes, ttl_s: float) -> None:
        """Keep a ticket; see the base."""
        await self._run([("SET", _ticket_key(ticket), value, "PX", round(ttl_s * 1000))])

    async def take_ticket(self, ticket: str) -> bytes | None:
        """Use a ticket; see the base."""
        (value,) = await self._run([("GETDEL", _ticket_key(ticket))])
        return value if isinstance(value, bytes) else None

    async def generation_mark(self) -> str:
        """The data's mark, made when absent, and the server's `run_id`, of each partition; see the base."""
        return await self._ask_marks(range(self._partitions.count))

    async def _ask_marks(self, partitions: Iterable[int]) -> str:
        asked = list(partitions)
        keys = map(self._partitions.mark_key, asked)
        agreement = self._partitions.agreeing()
        replies = await self._run([*agreement, *itertools.chain.from_iterable(map(_mark, keys))])
        try:
            self._partitions.agreed(replies[: len(agreement)])
        except StoreMisfitError as misfit:
            raise self._away(str(misfit)) from misfit
        marks = []
        for partition, said in zip(
            asked, _pieces(replies[len(agreement) :], _MARK_COMMANDS), strict=True
        ):
            made, mark, about, time = said
            marks.append(f"{mark.decode()}/{_run_id(about)}")
            self._belief.marked(marks[-1], partition, fresh=bool(made))
            self._belief.told_time(int(time[0]) * 1000 + int(time[1]) // 1000)
        return " ".join(marks)

    def now_ms(self) -> int:
        """The server's clock as last heard; see the base."""
        return self._belief.now_ms()

    async def close(self) -> None:
        """Give back connections."""
        await self._link.close()

    # ------------------------------------------------------------ deadlines

    def _watch_commands(self, writes: Sequence[SessionWrite]) -> list[Command]:
        """When to look at sessions that are new or have lost their connection.

        A later deadline needs no word: the sweep finds it in the session's hash and looks again.
        """
        shards: dict[int, list[Argument]] = {}
        for write in writes:
            if (write.created or write.detached) and not write.closed:
                silence_s = 0.0 if write.detached else OWNER_SILENCE_S
                due_ms = round((self._resume_ttl_s + silence_s) * 1000)
                shards.setdefault(_shard_of(write.session), []).extend((write.session, due_ms))
        return [_script("watch", _deadlines_key(s), args) for s, args in shards.items()]

    async def _sweep_shard(self, shard: int, limit: int, gateway: str) -> list[StoredSession]:
        key = _deadlines_key(shard)
        (due,) = await self._run([_script("due", key, (limit, round(SWEEP_RETRY_S * 1000)))])
        swept: list[StoredSession] = []
        later: list[Command] = []
        for session in (name.decode() for name in due):
            reply = await self._claim("sweep", session, gateway)
            if reply[0] == b"claimed":
                swept.append(read_claimed(session, *reply[1:]))
            elif reply[0] == b"later":
                later.append(_script("watch", key, (session, reply[1])))
            else:
                later.append(("ZREM", key, session))
        if later:
            await self._run(later)
        return swept

    async def _claim(
        self, mode: str, session: str, gateway: str, token_hash: str = "", above: int = 0
    ) -> list[Reply]:
        keep_ms = round((self._resume_ttl_s + KEEP_S) * 1000)
        deadline_ms = round((self._resume_ttl_s + OWNER_SILENCE_S) * 1000)
        arguments = (mode, token_hash, keep_ms, deadline_ms, gateway, above)
        key = self._partitions.session_key(session)
        (reply,) = await self._answers([_script("claim", key, arguments)])
        if isinstance(reply, ResponseError):
            _log.error("session %s cannot be read: %s", session, reply)
            return [b"failed"]
        return list(reply)

    # ------------------------------------------------------------ the connection

    async def _settled(self, session: str | None = None) -> None:
        """Raise while the store is away, or back too recently to be believed.

        Asked each time: a server that was started again between two looks at its mark has old data.
        """
        of = range(self._partitions.count) if session is None else [self._partitions.of(session)]
        await self._ask_marks(of)
        self._belief.check()

    async def _sure_it_is_gone(self, session: str) -> None:
        """Raise when the store may have lost the session, or has not been told of it yet."""
        await self._ask_marks([self._partitions.of(session)])
        self._belief.check_lacking(session)

    async def _run(self, commands: Sequence[Command], *, kept: bool = False) -> list[Reply]:
        """`_answers`, where a command that cannot be carried out is `StoreUnavailableError`, too."""
        replies = await self._answers(commands, kept=kept)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise StoreUnavailableError(str(reply)) from reply
        return replies

    async def _answers(self, commands: Sequence[Command], *, kept: bool = False) -> list[Reply]:
        """The replies to all commands; some may be a `ResponseError` about one command and its keys.

        Any fault of connection or server is `StoreUnavailableError`.
        """
        try:
            replies = await self._link.exchange(commands, kept=kept)
            for reply in replies:
                if isinstance(reply, ResponseError) and (
                    # Those that the library knows by their code are the server's, one and all.
                    type(reply) is not ResponseError or _is_of_the_server(str(reply))
                ):
                    raise reply
        except LateTimeoutError as error:
            raise StoreLateError from error
        except (RedisError, OSError) as error:
            raise self._away(_told(error)) from error
        if self._belief.answered():
            _log.warning("the store is back")
        return replies

    def _away(self, why: str) -> StoreUnavailableError:
        if self._belief.failed():
            _log.warning("the store is away: %s", why)
        return StoreUnavailableError(why)


def _by_partition(
    writes: Sequence[SessionWrite], partitions: Partitions
) -> Iterator[tuple[int, Sequence[SessionWrite]]]:
    """What each script call writes: sessions of one partition, and not too many."""
    parts: dict[int, list[SessionWrite]] = {}
    for write in writes:
        parts.setdefault(partitions.of(write.session), []).append(write)
    for partition, part in parts.items():
        for first in range(0, len(part), SCRIPT_SESSIONS_MAX):
            yield partition, part[first : first + SCRIPT_SESSIONS_MAX]


def _is_of_the_server(error: str) -> bool:
    """Whether it would answer any command so; else it is about one command and its keys.

    An error begins with its code; the library leaves out `ERR`.
    """
    code = error.partition(" ")[0]
    return code.isupper() and code not in ("ERR", "WRONGTYPE")


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, StoreMisfitError) else type(error).__name__


def _mark(key: str) -> tuple[Command, ...]:
    return (("SET", key, secrets.token_hex(8), "NX"), ("GET", key), ("INFO", "server"), ("TIME",))


def _pieces(replies: Sequence[Reply], length: int) -> Iterator[Sequence[Reply]]:
    return (replies[at : at + length] for at in range(0, len(replies), length))
