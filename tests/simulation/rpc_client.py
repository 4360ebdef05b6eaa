"""`grpc.aio` over the simulated network, from the caller's side.

Nobody but a peer that is gone, frozen or cut off is ever silent for longer than the keepalive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from mesh.rpc.channel import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from tests.simulation.network import End, Network
from tests.simulation.rpc_wire import (
    BEGIN,
    CALL,
    CANCEL,
    HALF_CLOSE,
    MESSAGE,
    PING,
    PONG,
    Inbox,
)

__all__ = ["Channel"]

RECONNECT_S = 0.2

_NO_METADATA = grpc.aio.Metadata()


def _failed(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, _NO_METADATA, _NO_METADATA, details)


class _Call:
    """One call of any kind, from its caller's side."""

    def __init__(
        self, channel: Channel, path: str, codec: tuple[Any, Any], metadata: Any, *, patient: bool
    ) -> None:
        self.inbox = Inbox()
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
        self._end.send(kind, CALL.pack(self._number) + payload)

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
        (number,) = CALL.unpack_from(payload)
        call = self._calls.get(number)
        if call is None:
            return
        if kind == MESSAGE:
            call.inbox.put(payload[CALL.size :])
        else:
            code, details = json.loads(payload[CALL.size :])
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
