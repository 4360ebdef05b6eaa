"""What a connection speaks: frames to messages and back, text or binary (§1, §3, §5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Protocol

from seedance.protocol.binary_codec import ClientDecoder, ServerEncoder
from seedance.protocol.errors import CloseCode, ProtocolFault, SeedanceError
from seedance.protocol.frames import ClientFrame, Flush, ServerFrame, Token
from seedance.protocol.json_codec import decode_client, encode_server

__all__ = ["GATHER_S", "SUBPROTOCOLS", "BinarySpeech", "JsonSpeech", "Messages", "Speech", "speech"]

_log = logging.getLogger("gateway")

SUBPROTOCOLS = ("seedance.v2.json", "seedance.v2.proto", "seedance.v2.proto.zstd")
# Compression needs something to compress: tokens of a compressed connection leave at most this
# often, a little more than one picture of a screen. Nothing else waits, and no first token does.
GATHER_S = 0.02

Heard = ClientFrame | SeedanceError


class Messages(Protocol):
    """Where messages go (`gateway.ws_protocol`)."""

    def send_text(self, text: str) -> None:
        """Send a text message."""
        ...

    def send_bytes(self, data: bytes) -> None:
        """Send a binary message."""
        ...

    def send_close(self, code: int, reason: str) -> None:
        """Close; nothing is sent any more, and nothing heard."""
        ...


class Speech(Protocol):
    """One connection's subprotocol."""

    @property
    def waiting(self) -> bool:
        """Whether a frame has not been given to the socket yet."""
        ...

    def send(self, frame: ServerFrame, seq: int | None = None, text: str | None = None) -> None:
        """Say a frame; `text` is its JSON where somebody has it already."""
        ...

    def flush(self) -> None:
        """Give the socket what waits."""
        ...

    def hear(self, message: str | bytes) -> Iterator[Iterable[Heard]]:
        """What a message says: groups of frames, in place of a wrong frame its `bad_request`.

        Raises `ProtocolFault` where no frame can be read any more.
        """
        ...


class JsonSpeech:
    """`seedance.v2.json`: one object in each text message."""

    waiting = False

    def __init__(self, socket: Messages) -> None:
        self._socket = socket

    def send(self, frame: ServerFrame, seq: int | None = None, text: str | None = None) -> None:
        """Say it at once."""
        self._socket.send_text(text or encode_server(frame, seq))

    def flush(self) -> None:
        """Nothing ever waits."""

    def hear(self, message: str | bytes) -> Iterator[Iterable[Heard]]:
        """One frame."""
        if isinstance(message, bytes):
            raise ProtocolFault(CloseCode.UNSUPPORTED_DATA, "this subprotocol's messages are text")
        try:
            yield (decode_client(message),)
        except SeedanceError as refusal:
            yield (refusal,)


class BinarySpeech:
    """`seedance.v2.proto` and `.zstd`: what one turn of the loop says leaves as one envelope."""

    def __init__(
        self, socket: Messages, loop: asyncio.AbstractEventLoop, *, compressed: bool
    ) -> None:
        self._socket = socket
        self._encoder = ServerEncoder(compressed=compressed)
        self._decoder = ClientDecoder(compressed=compressed)
        self._gather_s = GATHER_S if compressed else 0.0
        self._loop = loop
        self._frames: list[tuple[ServerFrame, int | None]] = []
        self._tokens_from = 0.0
        self._flush_at = 0.0
        self._handle: asyncio.Handle | None = None

    @property
    def waiting(self) -> bool:
        """Whether frames gather."""
        return bool(self._frames)

    def send(self, frame: ServerFrame, seq: int | None = None, text: str | None = None) -> None:
        """Say it in this turn of the loop, a token perhaps a little later."""
        del text
        self._frames.append((frame, seq))
        flush_at = self._tokens_from if isinstance(frame, Token | Flush) else 0.0
        if self._handle is not None:
            if flush_at >= self._flush_at:
                return
            self._handle.cancel()
        self._flush_at = flush_at
        if flush_at > self._loop.time():
            self._handle = self._loop.call_at(flush_at, self.flush)
        else:
            self._handle = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Give the socket what has gathered."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        frames, self._frames = self._frames, []
        if frames:
            self._tokens_from = self._loop.time() + self._gather_s
            try:
                messages = self._encoder.encode(frames)
            except Exception:  # noqa: BLE001 - a fault of ours ends this connection, and says so
                # What was to be said is lost here, and the next envelope would not fit the last one.
                _log.exception("frames could not be encoded")
                self._socket.send_close(CloseCode.INTERNAL_ERROR, "a frame could not be encoded")
                return
            for message in messages:
                self._socket.send_bytes(message)

    def hear(self, message: str | bytes) -> Iterator[Iterable[Heard]]:
        """The frames of each envelope that is whole now."""
        if isinstance(message, str):
            raise ProtocolFault(
                CloseCode.UNSUPPORTED_DATA, "this subprotocol's messages are binary"
            )
        yield from self._decoder.feed(message)


def speech(chosen: str | None, socket: Messages) -> Speech:
    """The subprotocol that was chosen; None: the client offered none and gets JSON."""
    if chosen in {None, SUBPROTOCOLS[0]}:
        return JsonSpeech(socket)
    loop = asyncio.get_running_loop()
    return BinarySpeech(socket, loop, compressed=chosen == SUBPROTOCOLS[2])
