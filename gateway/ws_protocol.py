"""uvicorn's WebSocket with what the contract asks and ASGI has no words for (§2, §3).

An empty ping only after silence, the time of the last input, frames that gather for one write
(`gateway.writes`), and word of a full transport. The application finds this object in its scope under
`SOCKET_EXTENSION`. uvicorn's private names move: the pin in pyproject.toml and this file go together.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.speedups import apply_mask

from gateway.send_buffer import round_trip_s, send_buffer_for
from gateway.writes import Writes
from mesh.clock import Clock, SystemClock

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

__all__ = ["SOCKET_EXTENSION", "SocketProtocol", "socket_protocol"]

SOCKET_EXTENSION = "seedance.socket"
WRITE_HIGH_BYTES = 16 * 1024
WRITE_LOW_BYTES = 4 * 1024
# RFC 6455 §5.2: FIN and opcode; the length in 7 bits, or 126 and 16 bits, or 127 and 64 bits.
_TEXT_FINAL, _BINARY_FINAL = 0x81, 0x82
_LENGTH_7, _LENGTH_16 = 125, 0xFFFF
_MASKED, _MASKED_HEADER_BYTES = 0x80, 6
SMALL_FRAME_BYTES = _MASKED_HEADER_BYTES + _LENGTH_7
FAULT_LINGER_S = 1.0
# A client that makes us answer faster than it reads is not heard while this much waits for it. A
# whole window of frames fits well below.
UNREAD_BYTES_MAX = 1024 * 1024
# So much at once is a flood: whoever sends it waits for the loop's next turn with the rest.
FLOOD_BYTES = 64 * 1024
# Pieces of a message that has not arrived in full.
FRAGMENTS_MAX = 1024
# RFC 6455 §5.5: a control frame holds 125 bytes, two of which are the close code.
CLOSE_REASON_BYTES_MAX = 123


@lru_cache(maxsize=1024)  # a token's frame has about a hundred bytes, and is like the one before
def _header(opcode: int, size: int) -> bytes:
    if size <= _LENGTH_7:
        return bytes((opcode, size))
    if size <= _LENGTH_16:
        return bytes((opcode, 126)) + size.to_bytes(2, "big")
    return bytes((opcode, 127)) + size.to_bytes(8, "big")


def _ignore(_writable: bool) -> None:
    """Nobody listens yet."""


def _nobody_asks() -> None:
    """Nobody measures this connection."""


def _not_mine(_message: bytes) -> bool:
    """Nobody listens yet."""
    return False


class SocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket. `on_writable` is told when the transport's buffer fills and empties.

    `on_small` is asked first about a small text message that comes alone, and says whether that was
    all there was to do: through the queue and a task each would cost four times as much.
    """

    clock: Clock = SystemClock()
    writes = Writes(clock)
    input_at = 0.0
    piece_at: float | None = None
    on_writable: Callable[[bool], None] = staticmethod(_ignore)
    # For the bill (`gateway.metering`): from the upgrade to the peer's FIN to the transport's end, and
    # what the WebSocket's messages are on the wire, below TLS.
    opened_at = 0.0
    ended_at: float | None = None
    lost_at: float | None = None
    bytes_in = 0
    bytes_out = 0
    on_lost: Callable[[], None] = staticmethod(_nobody_asks)
    on_small: Callable[[bytes], bool] = staticmethod(_not_mine)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bound the buffers, so that a slow reader is noticed soon."""
        super().connection_made(transport)
        self._outgoing: list[bytes] = []
        self.input_at = self.opened_at = self.clock.monotonic()
        sock = transport.get_extra_info("socket")
        if sock is not None:
            size = send_buffer_for(round_trip_s(sock))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)

    def eof_received(self) -> None:
        """The peer sends no more: from here to our own end the socket is in CLOSE_WAIT."""
        self.ended_at = self.clock.monotonic()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone; what is left of the socket is TIME_WAIT, and nobody's."""
        self.lost_at = self.clock.monotonic()
        super().connection_lost(exc)
        self.on_lost()

    def _write(self, data: bytes) -> None:
        self.bytes_out += len(data)
        self.transport.write(data)

    def round_trip_us(self) -> int | None:
        """The kernel's smoothed round trip; None where it tells none."""
        sock = self.transport.get_extra_info("socket")
        return None if sock is None else round(round_trip_s(sock) * 1e6) or None

    def handle_connect(self, event: Request) -> None:
        """Let the application find this object."""
        self.bytes_in = 0  # the request itself was handed on to here
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["extensions"] = {**(self.scope["extensions"] or {}), SOCKET_EXTENSION: {}}
            cast("dict[str, object]", self.scope["extensions"])[SOCKET_EXTENSION] = self

    async def send(self, message: ASGISendEvent) -> None:
        """A refusal in full completes the handshake; uvicorn would log an error for each."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    def data_received(self, data: bytes) -> None:
        """Anything that arrives is a sign of life; after a fault it is only thrown away."""
        self.input_at = self.clock.monotonic()
        self.bytes_in += len(data)
        if len(data) <= SMALL_FRAME_BYTES and self._small(data):
            return
        if self.conn.parser_exc is None:
            super().data_received(data)
            if self.conn.reader.buffer or self.frames:
                self.piece_at = self.input_at
            if len(data) >= FLOOD_BYTES and not self.read_paused:
                self.transport.pause_reading()
                self.loop.call_soon(self._read_on)

    def _small(self, data: bytes) -> bool:
        """Hand a whole text frame to `on_small`, unless anything that came before is still to be read."""
        size = len(data) - _MASKED_HEADER_BYTES
        if size < 0 or data[0] != _TEXT_FINAL or data[1] != _MASKED | size:
            return False
        if self.read_paused or self.frames or self.conn.reader.buffer or not self.queue.empty():
            return False
        if self.conn.state is not OPEN or not self.alive:
            return False
        return self.on_small(apply_mask(data[_MASKED_HEADER_BYTES:], data[2:_MASKED_HEADER_BYTES]))

    def _read_on(self) -> None:
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        """Keep a message in few pieces: as a piece of its own a byte would cost forty, and nothing eight."""
        super().handle_cont(event)
        if len(self.frames) >= FRAGMENTS_MAX:
            self.frames = [b"".join(self.frames)]

    def handle_ping(self) -> None:
        """Answer a ping; of many, the last will do (RFC 6455 §5.5.3) for who does not read."""
        pong = b"".join(self.conn.data_to_send())
        if not self._unread:
            self._write(pong)

    def handle_close(self, event: Frame) -> None:
        """The peer closes; uvicorn answers with the same frame."""
        if not self.close_sent and not self.transport.is_closing():
            self.bytes_out += len(_header(_TEXT_FINAL, len(event.data))) + len(event.data)
        super().handle_close(event)

    def handle_parser_exception(self) -> None:
        """Close with the fault's code, and go on reading for a moment.

        To close a socket that has unread bytes resets the connection, and the peer, still busy
        sending its 5 MB, would never see the code (CASES 39).
        """
        fault = self.conn.close_sent
        assert fault is not None  # noqa: S101 - `fail` has sent it
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": fault.code, "reason": fault.reason}
        )
        self.flush()
        self._write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.resume_reading()
        self._part_after(FAULT_LINGER_S)

    def pause_writing(self) -> None:
        """The buffer is over its mark."""
        super().pause_writing()
        self.on_writable(False)

    def resume_writing(self) -> None:
        """The buffer has drained."""
        super().resume_writing()
        self.on_writable(True)

    @property
    def idle(self) -> bool:
        """Whether everything that was sent has been taken by the kernel."""
        return not self._outgoing and self.transport.get_write_buffer_size() == 0

    @property
    def alive(self) -> bool:
        """Whether a frame may still be written."""
        return not (self.close_sent or self.disconnected or self.transport.is_closing())

    def send_text(self, text: str) -> None:
        """Send a text message; it leaves when the sockets are written to (`gateway.writes`)."""
        self._send(_TEXT_FINAL, text.encode())

    def send_bytes(self, data: bytes) -> None:
        """Send a binary message likewise."""
        self._send(_BINARY_FINAL, data)

    def _send(self, opcode: int, payload: bytes) -> None:
        outgoing, writes = self._outgoing, self.writes
        writes.frames += 1
        if not outgoing:
            # Whoever is not alive by then is not written to (`flush`).
            writes.soon(self)
        outgoing += (_header(opcode, len(payload)), payload)

    def flush(self) -> None:
        """Write what has gathered."""
        outgoing, self._outgoing = self._outgoing, []
        # uvloop raises when one writes to a closed transport.
        if outgoing and self.alive and self.conn.state is OPEN:
            self._write(b"".join(outgoing))

    def send_ping(self) -> None:
        """Ask whether anybody is there, with empty payload."""
        if self.alive and self.conn.state is OPEN:
            self.flush()
            self.conn.send_ping(b"")
            self._write(b"".join(self.conn.data_to_send()))

    def send_close(self, code: int, reason: str) -> None:
        """Close the WebSocket after what was sent before; the application hears a disconnect."""
        if not self.alive or self.conn.state is not OPEN:
            return
        self.flush()
        short = reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": short})
        self.conn.send_close(code, short)
        self._write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.writable.set()
        self._part_after(self.close_timeout)

    def _part_after(self, seconds: float) -> None:
        """Close by then; a peer that does not even read what was sent is cut off."""
        self.close_timer = self.loop.call_later(seconds, self._part)

    def _part(self) -> None:
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)
        self.transport.close()

    @property
    def _unread(self) -> bool:
        return self.transport.get_write_buffer_size() > UNREAD_BYTES_MAX

    async def give_way(self) -> None:
        """Before the next message: let others have their turn, and this client read its answers."""
        await asyncio.sleep(0)
        while self.alive and self._unread:
            await self.writable.wait()

    def send_receive_event_to_app(self) -> None:
        """Refuse invalid UTF-8 with 1007, without a stack trace in the log."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(1007, "text messages are UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()


def socket_protocol(clock: Clock) -> type[SocketProtocol]:
    """The protocol class for a server whose time is `clock`'s."""
    return type(
        "ClockedSocketProtocol", (SocketProtocol,), {"clock": clock, "writes": Writes(clock)}
    )
