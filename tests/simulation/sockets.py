"""WebSockets over the simulated network: the SDK's `connect`, and the gateway's socket."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close

from gateway.subprotocols import SUBPROTOCOLS
from mesh.clock import Clock
from tests.simulation.network import End, Network

__all__ = ["ClientSocket", "ServerSocket", "dialler"]

# The library stops reading when so many messages wait for the application.
QUEUE_HIGH, QUEUE_LOW = 16, 4
UNREAD_BYTES_MAX = 1024 * 1024
CLOSE_LINGER_S = 1.0

_CODE = struct.Struct(">H")


class _Op(IntEnum):
    HELLO = 1  # the upgrade request, with the subprotocol that is spoken then
    TEXT = 2
    BINARY = 3
    PING = 4
    PONG = 5
    CLOSE = 6


def _close(code: int, reason: str) -> bytes:
    return _CODE.pack(code) + reason.encode()


class ClientSocket:
    """What the SDK uses of `websockets.asyncio.client.ClientConnection`."""

    def __init__(self, end: End, subprotocol: str | None) -> None:
        self.subprotocol = subprotocol
        self._end = end
        self._messages: deque[str | bytes] = deque()
        self._news = asyncio.Event()
        self._closed: Close | None = None
        self._over = False
        end.hear(self._take, self._lost)

    async def recv(self, decode: bool | None = None) -> str | bytes:
        """The next message. Raises `ConnectionClosed`."""
        while not self._messages:
            if self._over:
                raise self._exception()
            self._news.clear()
            await self._news.wait()
        if len(self._messages) == QUEUE_LOW:
            self._end.reading(True)
        return self._messages.popleft()

    async def send(self, message: str | bytes) -> None:
        """Send a message; waits while the transport is full. Raises `ConnectionClosed`."""
        if self._over or not self._end.open:
            raise self._exception()
        if isinstance(message, str):
            self._end.send(_Op.TEXT, message.encode())
        else:
            self._end.send(_Op.BINARY, message)
        await self._end.room()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close it."""
        self._end.send(_Op.CLOSE, _close(code, reason))
        self._end.close()
        self._over = True
        self._news.set()

    def _exception(self) -> ConnectionClosedOK | ConnectionClosedError:
        kind = ConnectionClosedOK if self._closed else ConnectionClosedError
        return kind(self._closed, None)

    def _take(self, kind: int, payload: bytes) -> None:
        self._end.host.heard_at = asyncio.get_running_loop().time()
        match kind:
            case _Op.TEXT:
                self._messages.append(payload.decode())
            case _Op.BINARY:
                self._messages.append(payload)
            case _Op.PING:
                self._end.send(_Op.PONG)
                return
            case _Op.CLOSE:
                self._closed = Close(*_CODE.unpack_from(payload), payload[2:].decode())
                self._end.close()
                self._over = True
        self._news.set()
        if len(self._messages) >= QUEUE_HIGH:
            self._end.reading(False)

    def _lost(self) -> None:
        self._over = True
        self._news.set()


def dialler(network: Network) -> Callable[..., Any]:
    """`websockets.asyncio.client.connect` on a network."""

    @asynccontextmanager
    async def connect(
        url: str, *, subprotocols: Sequence[str] = (), open_timeout: float = 10, **_: Any
    ) -> AsyncIterator[ClientSocket]:
        async with asyncio.timeout(open_timeout):
            end = await network.dial(urlsplit(url).netloc)
        # The gateway takes the first that it knows, in the client's order (§1).
        chosen = next(item for item in subprotocols if item in SUBPROTOCOLS)
        end.send(_Op.HELLO, chosen.encode())
        socket = ClientSocket(end, chosen)
        try:
            yield socket
        finally:
            end.close()

    return connect


class ServerSocket:
    """`gateway.websocket.Socket` on a connection; `messages` are read one after the other."""

    def __init__(self, end: End, clock: Clock) -> None:
        self.input_at = clock.monotonic()
        self.end = end
        self.subprotocol = ""
        self._clock = clock
        self._messages: deque[str | bytes] = deque()
        self._news = asyncio.Event()
        self._over = False
        self._close_sent = False
        self.on_small: Callable[[bytes], bool] = lambda _message: False
        end.hear(self._take, self._lost)

    @property
    def on_writable(self) -> Callable[[bool], None]:
        """Who hears of a full transport."""
        return self.end.on_writable

    @on_writable.setter
    def on_writable(self, hear: Callable[[bool], None]) -> None:
        self.end.on_writable = hear

    @property
    def piece_at(self) -> float | None:
        """When a piece of a message arrived."""
        return self.end.piece_at

    @property
    def idle(self) -> bool:
        """Whether everything sent has left the process."""
        return self.end.buffered == 0

    def send_text(self, text: str) -> None:
        """Send a text message."""
        self.end.send(_Op.TEXT, text.encode())

    def send_bytes(self, data: bytes) -> None:
        """Send a binary message."""
        self.end.send(_Op.BINARY, data)

    def send_ping(self) -> None:
        """Send an empty ping."""
        self.end.send(_Op.PING)

    def send_close(self, code: int, reason: str) -> None:
        """Close it; the peer has a moment to read what was sent before."""
        if self._close_sent:
            return
        self._close_sent = True
        self.end.send(_Op.CLOSE, _close(code, reason))
        self._lost()
        self.end.close()

    async def give_way(self) -> None:
        """Let others have their turn, and this client read its answers."""
        await asyncio.sleep(0)
        if self.end.buffered > UNREAD_BYTES_MAX:
            await self.end.room()

    async def greeting(self) -> bool:
        """Wait for the upgrade request; False: it never came."""
        while not (self.subprotocol or self._over):
            self._news.clear()
            await self._news.wait()
        return bool(self.subprotocol)

    async def messages(self) -> AsyncIterator[str | bytes]:
        """What the client sends, until the end."""
        while True:
            while self._messages and not self._close_sent:
                yield self._messages.popleft()
            if self._over:
                return
            self._news.clear()
            await self._news.wait()

    def _take(self, kind: int, payload: bytes) -> None:
        self.input_at = self._clock.monotonic()
        match kind:
            case _Op.HELLO:
                self.subprotocol = payload.decode()
            case _Op.TEXT if self._small(payload):
                return
            case _Op.TEXT:
                self._messages.append(payload.decode())
            case _Op.BINARY:
                self._messages.append(payload)
            case _Op.CLOSE:
                self._lost()
        self._news.set()

    def _small(self, payload: bytes) -> bool:
        waits = self._messages or self._over or self._close_sent
        return not waits and self.on_small(payload)

    def _lost(self) -> None:
        self._over = True
        self._news.set()
