"""`grpc.aio` over the simulated network, from the server's side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio

from tests.simulation.loop import Host
from tests.simulation.network import End, Network
from tests.simulation.rpc_wire import (
    BEGIN,
    CALL,
    HALF_CLOSE,
    MESSAGE,
    PING,
    PONG,
    STATUS,
    Inbox,
)

__all__ = ["Server"]


@dataclass(frozen=True, slots=True)
class _Details:
    method: str
    invocation_metadata: Any


class _Context:
    """`grpc.aio.ServicerContext` of one call."""

    def __init__(self, connection: _Connection, number: int, metadata: Any) -> None:
        self.inbox = Inbox()
        self.status = (grpc.StatusCode.OK, "")
        self.task: asyncio.Task[None] | None = None
        self._connection = connection
        self._number = number
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        """What the caller showed."""
        return self._metadata

    def peer(self) -> str:
        """Who calls."""
        return self._connection.end.peer.host.name

    async def write(self, message: Any) -> None:
        """Send an answer; waits while the transport is full."""
        end = self._connection.end
        if not end.open:
            raise grpc.aio.InternalError
        end.send(MESSAGE, CALL.pack(self._number) + message.SerializeToString())
        await end.room()

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End it with another status than OK."""
        self.status = (code, details)
        raise grpc.aio.AbortError


class _Connection:
    """One client's connection at the server."""

    def __init__(self, server: Server, end: End) -> None:
        self.end = end
        self._server = server
        self._calls: dict[int, _Context] = {}
        end.hear(self._take, self.lost)

    def lost(self) -> None:
        """Every call of it is cancelled, as grpc.aio does."""
        for call in self._calls.values():
            if call.task is not None:
                call.task.cancel()
        self._server.connections.pop(self, None)

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == PING:
            self.end.send(PONG)
            return
        (number,) = CALL.unpack_from(payload)
        if kind == BEGIN:
            path, metadata = json.loads(payload[CALL.size :])
            context = _Context(self, number, [tuple(item) for item in metadata])
            self._calls[number] = context
            context.task = self._server.host.spawn(self._serve(path, context, number))
            return
        call = self._calls.get(number)
        if call is None:
            return
        if kind == MESSAGE:
            call.inbox.put(payload[CALL.size :])
        elif kind == HALF_CLOSE:
            call.inbox.finish(grpc.StatusCode.OK)
        elif call.task is not None:
            call.task.cancel()

    async def _serve(self, path: str, context: _Context, number: int) -> None:
        try:
            # Who aborts has set a status; who answers a caller that is gone hears so.
            with suppress(grpc.aio.AbortError, grpc.aio.InternalError):
                await self._run(path, context)
        finally:
            self._calls.pop(number, None)
            code, details = context.status
            status = json.dumps([code.name, details]).encode()
            self.end.send(STATUS, CALL.pack(number) + status)

    async def _run(self, path: str, context: _Context) -> None:
        handler = self._server.find(path, context.invocation_metadata())
        parse = handler.request_deserializer
        if handler.stream_stream is not None:
            await handler.stream_stream(_requests(context, parse), context)
            return
        message = await context.inbox.get()
        if message is None:
            return
        if handler.unary_unary is not None:
            await context.write(await handler.unary_unary(parse(message), context))
        else:
            async for answer in handler.unary_stream(parse(message), context):
                await context.write(answer)


async def _requests(context: _Context, parse: Callable[[bytes], Any]) -> AsyncIterator[Any]:
    while (message := await context.inbox.get()) is not None:
        yield parse(message)


class Server:
    """`grpc.aio.Server` of a process, as far as registering goes, and `start`."""

    def __init__(self, network: Network, host: Host, address: str) -> None:
        self.host = host
        self.connections: dict[_Connection, None] = {}
        self._network = network
        self._address = address
        self._handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Handlers that are asked by name."""
        self._handlers += handlers

    def add_registered_method_handlers(self, _service: str, _handlers: Any) -> None:
        """The same handlers once more, for a faster look-up."""

    def start(self) -> None:
        """Listen."""
        self._network.listen(self._address, self.host, self._on_connect)

    def stop(self) -> None:
        """Listen no more, and end every connection."""
        self._network.unlisten(self._address)
        for connection in list(self.connections):
            connection.end.close()
            connection.lost()

    def find(self, path: str, metadata: Any) -> Any:
        """The handler of a method."""
        found = (handler.service(_Details(path, metadata)) for handler in self._handlers)
        return next(method for method in found if method is not None)

    def _on_connect(self, end: End) -> None:
        self.connections[_Connection(self, end)] = None
