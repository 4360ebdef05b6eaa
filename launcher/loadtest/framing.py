"""RFC 6455 as far as a client of a gateway needs it: whole frames, no extensions.

A library's connection costs 10 to 20 µs a frame, more than the gateway under test.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Opcode", "framed", "take_frames", "upgrade_request"]


class Opcode(IntEnum):
    """First bytes of final frames (§5.2)."""

    TEXT = 0x81
    BINARY = 0x82
    CLOSE = 0x88
    PING = 0x89
    PONG = 0x8A


_MASKED, _LENGTH_16, _LENGTH_64 = 0x80, 126, 127
_LENGTH_7_MAX, _LENGTH_16_MAX, _LENGTH_MASK = 125, 0xFFFF, 0x7F
# A client's frames are masked; a key of zeros leaves the payload as it is.
_ZERO_KEY = bytes(4)


def framed(opcode: Opcode, payload: bytes) -> bytes:
    """A client's frame."""
    size = len(payload)
    if size <= _LENGTH_7_MAX:
        return bytes((opcode, _MASKED | size)) + _ZERO_KEY + payload
    if size <= _LENGTH_16_MAX:
        head = bytes((opcode, _MASKED | _LENGTH_16)) + size.to_bytes(2, "big")
    else:
        head = bytes((opcode, _MASKED | _LENGTH_64)) + size.to_bytes(8, "big")
    return head + _ZERO_KEY + payload


def take_frames(data: bytearray) -> list[tuple[int, bytes]]:
    """A server's frames that are whole, each as first byte and payload; they leave the buffer."""
    frames, at, size = [], 0, len(data)
    while size - at >= 2:  # noqa: PLR2004 - a frame's shortest header
        length, head = data[at + 1] & _LENGTH_MASK, 2
        if length == _LENGTH_16:
            length, head = int.from_bytes(data[at + 2 : at + 4], "big"), 4
        elif length == _LENGTH_64:
            length, head = int.from_bytes(data[at + 2 : at + 10], "big"), 10
        if size - at < head + length:
            break
        frames.append((data[at], bytes(data[at + head : at + head + length])))
        at += head + length
    del data[:at]
    return frames


def upgrade_request(host: str, path: str, headers: dict[str, str]) -> bytes:
    """The request that asks for a WebSocket (§4.1)."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
