"""A client so light that two thousand fit beside what they measure: no SDK, no library.

It speaks `seedance.v2.json`, or nothing at all and is then a simple client (§1). It knows that a
gateway's frames are small, whole and unmasked, and reads of a frame only what it needs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from launcher.loadtest.framing import Opcode, framed, take_frames, upgrade_request

__all__ = ["Reader", "connect", "number_in", "open_all", "open_readers", "script_messages"]

R = TypeVar("R", bound="Reader")

ACK_EVERY, ACK_AFTER_S = 8, 0.05
CONNECTS_AT_ONCE = 50


def script_messages(tokens: Sequence[bytes], *, dt_ms: float, repeat: int) -> list[dict[str, str]]:
    """The conversation that makes the script engine play `tokens`, `repeat` times."""
    content = {
        "tokens_b64": [base64.b64encode(token).decode() for token in tokens],
        "dt_ms": dt_ms,
        "repeat": repeat,
    }
    return [{"role": "user", "content": json.dumps(content)}]


class Reader(asyncio.Protocol):
    """One WebSocket. `on_token(reader)` is called for each such frame."""

    # A stalled reader's own kernel is not to hide it. 0: the kernel's own choice.
    receive_buffer_bytes = 4096

    def __init__(self, host: str, *, windowed: bool, name: str) -> None:
        self.open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tokens = 0
        self.on_token: Callable[[Reader], None] = lambda _reader: None
        self.heard_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._windowed = windowed
        self._unacknowledged = 0
        self._last = b""
        self._last_token = b""
        self._timer: asyncio.TimerHandle | None = None
        headers = {"User-Agent": name}
        if windowed:
            headers["Sec-WebSocket-Protocol"] = "seedance.v2.json"
        self._hello = upgrade_request(host, "/v2/infer", headers)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._hello)

    def data_received(self, data: bytes) -> None:
        """Read the frames that are whole."""
        self._data += data
        if not self.open.done():
            head, found, rest = bytes(self._data).partition(b"\r\n\r\n")
            if not found:
                return
            if b" 101 " not in head.partition(b"\r\n")[0]:
                self.open.set_exception(ConnectionError(head.decode(errors="replace")))
                return
            self._data = bytearray(rest)
            self.open.set_result(None)
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        """The gateway, or this program, closed it."""
        self._fail(exc or ConnectionResetError("the connection ended"))

    def _fail(self, error: Exception) -> None:
        for future in (self.open, self.ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # heard: nobody has to ask

    def _read(self) -> None:
        for opcode, frame in take_frames(self._data):
            if opcode == Opcode.CLOSE:
                self._fail(ConnectionError(f"closed with {int.from_bytes(frame[:2], 'big')}"))
            elif opcode == Opcode.PING:
                self._write(Opcode.PONG, b"")
            elif b'"seq":' in frame:
                self._sequenced(frame)
            elif b'"type":"ping"' in frame:
                self.write({"type": "pong", "t": json.loads(frame)["t"]})
        if self._windowed and self._unacknowledged >= ACK_EVERY:
            self.acknowledge()
        elif self._windowed and self._unacknowledged and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACK_AFTER_S, self.acknowledge)

    def _sequenced(self, frame: bytes) -> None:
        self._unacknowledged += 1
        self._last = frame
        if b'"type":"token"' in frame:
            self.tokens += 1
            self._last_token = frame
            self.on_token(self)
        elif (b'"type":"done"' in frame or b'"type":"error"' in frame) and not self.ended.done():
            self.ended.set_result(None)

    @property
    def offset(self) -> int:
        """The bytes of text before the last token frame; 0: there was none."""
        return number_in(self._last_token, b'"offset":') if self._last_token else 0

    @property
    def delta(self) -> bytes:
        """The text of the last token frame, as JSON has it; empty: there was none."""
        return self._last_token.partition(b'"delta":"')[2].partition(b'"')[0]

    @property
    def heard_last(self) -> str:
        """The last numbered frame, for people."""
        return self._last.decode(errors="replace")

    def acknowledge(self) -> None:
        """Say that everything that came is processed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unacknowledged = 0
        self.acknowledge_until(_seq_of(self._last))

    def acknowledge_until(self, seq: int) -> None:
        """Say that everything up to this frame is processed."""
        self._write(Opcode.TEXT, b'{"type":"ack","seq":%d}' % (seq + 1))

    def write(self, frame: dict[str, Any]) -> None:
        """Send a frame."""
        self._write(Opcode.TEXT, json.dumps(frame).encode())

    def _write(self, opcode: Opcode, payload: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(opcode, payload))

    def ask(self, messages: list[dict[str, str]], **options: object) -> None:
        """Begin a stream; the end of the one before counts no more."""
        self.ended = asyncio.get_running_loop().create_future()
        self.write({"messages": messages, **options})

    def stall(self) -> None:
        """Read nothing any more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def read_on(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def cut(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()


def _seq_of(frame: bytes) -> int:
    return number_in(frame, b'"seq":')


def number_in(frame: bytes, name: bytes) -> int:
    """The first number in a frame that follows `name`."""
    digits = frame.partition(name)[2]
    end = min(at for at in (digits.find(b","), digits.find(b"}")) if at >= 0)
    return int(digits[:end])


async def connect(kind: type[R], address: str, *, windowed: bool, name: str) -> R:
    """A reader whose WebSocket is open. Raises `OSError`."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if kind.receive_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kind.receive_buffer_bytes)
    sock.setblocking(False)
    await loop.sock_connect(sock, (host, int(port)))
    _, reader = await loop.create_connection(
        lambda: kind(address, windowed=windowed, name=name), sock=sock
    )
    await reader.open
    return reader


async def open_all(kind: type[R], address: str, count: int, *, windowed: bool = True) -> list[R]:
    """Connect so many, each a user of its own to the router's rule."""
    readers: list[R] = []
    for first in range(0, count, CONNECTS_AT_ONCE):
        names = [f"bench-{first + i}" for i in range(min(CONNECTS_AT_ONCE, count - first))]
        connecting = (connect(kind, address, windowed=windowed, name=name) for name in names)
        readers += await asyncio.gather(*connecting)
    return readers


async def open_readers(address: str, count: int, *, windowed: bool = True) -> list[Reader]:
    """`open_all` of those that parse each frame."""
    return await open_all(Reader, address, count, windowed=windowed)
