"""gRPC over the simulated network: what the services use of `grpc.aio`, with its behaviour.

One connection per channel carries all its calls. A message is an envelope with the call's number;
nobody but a peer that is gone, frozen or cut off is ever silent for longer than the keepalive.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

import grpc
import grpc.aio

from mesh.rpc.channel import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from tests.simulation.loop import Host
from tests.simulation.network import End, Network

__all__ = ["Channel", "Server"]

BEGIN, MESSAGE, HALF_CLOSE, CANCEL, STATUS, PING, PONG = range(1, 8)
RECONNECT_S = 0.2

_CALL = struct.Struct(">I")
_NO_METADATA = grpc.aio.Metadata()


def _failed(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, _NO_METADATA, _NO_METADATA, details)


class _Inbox:
    """Messages of one call in one direction, and how they end (None: not yet)."""

    def __init__(self) -> None:
        self.end: grpc.StatusCode | None = None
        self.details = ""
        self._messages: deque[bytes] = deque()
        self._news = asyncio.Event()

    def put(self, message: bytes) -> None:
        self._messages.append(message)
        self._news.set()

    def finish(self, code: grpc.StatusCode, details: str = "") -> None:
        if self.end is None:
            self.end, self.details = code, details
            self._news.set()

    async def get(self) -> bytes | None:
        """The next message; None: the end."""
        while not self._messages:
            if self.end is not None:
                return None
            self._news.clear()
            await self._news.wait()
        return self._messages.popleft()


# ---------------------------------------------------------------- client


class _Call:
    """One call of any kind, from its caller's side."""

    def __init__(
        self, channel: Channel, path: str, codec: tuple[Any, Any], metadata: Any, *, patient: bool
    ) -> None:
        self.inbox = _Inbox()
        self._channel = channel
        self._begin = json.dumps([path, list(metadata or ())]).encode()
        self._serialize, self._parse = codec
        self._patient = patient
        self._number = 0
        self._end: End | None = None
        self._starting = asyncio.Lock()

    async def _started(self) -> End:
        async with self._starting:
            if self._end is None:
                self._end = await self._channel.connected(patient=self._patient)
                self._number = self._channel.register(self)
                self._send(BEGIN, self._begin)
        return self._end

    def _send(self, kind: int, payload: bytes = b"") -> None:
        assert self._end is not None
        self._end.send(kind, _CALL.pack(self._number) + payload)

    async def write(self, request: Any) -> None:
        """Send a message; waits while the transport is full."""
        end = await self._started()
        if self.inbox.end is not None:
            raise asyncio.InvalidStateError
        self._send(MESSAGE, self._serialize(request))
        await end.room()

    async def done_writing(self) -> None:
        """No more is asked."""
        await self._started()
        self._send(HALF_CLOSE)

    async def read(self) -> Any:
        """The next message or `EOF`. Raises `AioRpcError` for another end."""
        await self._started()
        message = await self.inbox.get()
        if message is not None:
            return self._parse(message)
        if self.inbox.end is grpc.StatusCode.OK:
            return grpc.aio.EOF
        raise _failed(self.inbox.end or grpc.StatusCode.UNKNOWN, self.inbox.details)

    def cancel(self) -> None:
        """Ask for no more of it."""
        if self.inbox.end is None and self._end is not None:
            self._send(CANCEL)
        self.inbox.finish(grpc.StatusCode.CANCELLED)
        self._channel.unregister(self._number)


class _StreamCall(_Call):
    """A call with one request and many answers."""

    def __init__(self, request: Any, *rest: Any, patient: bool) -> None:
        super().__init__(*rest, patient=patient)
        self._request = request

    async def read(self) -> Any:
        if self._end is None:
            await self.write(self._request)
            await self.done_writing()
        return await super().read()


class Channel:
    """`grpc.aio.Channel` to an address."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self._end: End | None = None
        self._dialling = asyncio.Lock()
        self._calls: dict[int, _Call] = {}
        self._last = 0
        self._closed = False
        self._answered = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self, _grace: float | None = None) -> None:
        """End the connection and every call."""
        self._closed = True
        if self._end is not None:
            self._end.close()
        self._lost()

    async def connected(self, *, patient: bool) -> End:
        """The connection, made when there is none. Raises `AioRpcError`."""
        async with self._dialling:
            while self._end is None:
                try:
                    end = await self._network.dial(self._address)
                except OSError:
                    if not patient:
                        raise _failed(grpc.StatusCode.UNAVAILABLE) from None
                    await asyncio.sleep(RECONNECT_S)
                    continue
                self._end = end
                end.hear(self._take, self._lost)
                self._keeper = asyncio.create_task(self._keep_alive(end))
            return self._end

    def register(self, call: _Call) -> int:
        """A number for a new call."""
        self._last += 1
        self._calls[self._last] = call
        return self._last

    def unregister(self, number: int) -> None:
        """Nothing of it is heard any more."""
        self._calls.pop(number, None)

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == PONG:
            self._answered.set()
            return
        (number,) = _CALL.unpack_from(payload)
        call = self._calls.get(number)
        if call is None:
            return
        if kind == MESSAGE:
            call.inbox.put(payload[_CALL.size :])
        else:
            code, details = json.loads(payload[_CALL.size :])
            del self._calls[number]
            call.inbox.finish(grpc.StatusCode[code], details)

    def _lost(self) -> None:
        self._end = None
        if self._keeper is not None:
            self._keeper.cancel()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.inbox.finish(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    async def _keep_alive(self, end: End) -> None:
        try:
            while True:
                await asyncio.sleep(KEEPALIVE_MS / 1000)
                self._answered.clear()
                end.send(PING)
                async with asyncio.timeout(KEEPALIVE_TIMEOUT_MS / 1000):
                    await self._answered.wait()
        except TimeoutError:
            end.cut()
            self._keeper = None
            self._lost()

    # ------------------------------------------------------------ what stubs ask for

    def unary_unary(self, path: str, *codec: Any, **options: Any) -> Callable[..., Any]:
        """One question, one answer."""
        codec = _codec(codec, options)

        async def call(
            request: Any,
            *,
            timeout: float | None = None,  # noqa: ASYNC109 - the name in grpc's interface
            metadata: Any = None,
            wait_for_ready: bool = False,
        ) -> Any:
            made = _Call(self, path, codec, metadata, patient=wait_for_ready)
            try:
                async with asyncio.timeout(timeout):
                    await made.write(request)
                    await made.done_writing()
                    return await made.read()
            except TimeoutError:
                raise _failed(grpc.StatusCode.DEADLINE_EXCEEDED) from None
            finally:
                made.cancel()

        return call

    def unary_stream(self, path: str, *codec: Any, **options: Any) -> Callable[..., Any]:
        """One question, many answers."""
        codec = _codec(codec, options)

        def call(request: Any, *, metadata: Any = None, wait_for_ready: bool = False) -> Any:
            return _StreamCall(request, self, path, codec, metadata, patient=wait_for_ready)

        return call

    def stream_stream(self, path: str, *codec: Any, **options: Any) -> Callable[..., Any]:
        """Both ways."""
        codec = _codec(codec, options)

        def call(*, metadata: Any = None, wait_for_ready: bool = False) -> Any:
            return _Call(self, path, codec, metadata, patient=wait_for_ready)

        return call


def _codec(given: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
    return given or (options["request_serializer"], options["response_deserializer"])


# ---------------------------------------------------------------- server


@dataclass(frozen=True, slots=True)
class _Details:
    method: str
    invocation_metadata: Any


class _Context:
    """`grpc.aio.ServicerContext` of one call."""

    def __init__(self, connection: _Connection, number: int, metadata: Any) -> None:
        self.inbox = _Inbox()
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
        end.send(MESSAGE, _CALL.pack(self._number) + message.SerializeToString())
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
        (number,) = _CALL.unpack_from(payload)
        if kind == BEGIN:
            path, metadata = json.loads(payload[_CALL.size :])
            context = _Context(self, number, [tuple(item) for item in metadata])
            self._calls[number] = context
            context.task = self._server.host.spawn(self._serve(path, context, number))
            return
        call = self._calls.get(number)
        if call is None:
            return
        if kind == MESSAGE:
            call.inbox.put(payload[_CALL.size :])
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
            self.end.send(STATUS, _CALL.pack(number) + status)

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
