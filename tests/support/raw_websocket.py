"""WebSocket by hand: a client's frames as bytes, right or wrong (RFC 6455 §5.2)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

__all__ = ["client_frame", "close_code", "server_frames", "upgraded"]

ANSWER_S = 10.0
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CLOSE = 0x8


def client_frame(
    opcode: int, payload: bytes, *, final: bool = True, reserved: int = 0, masked: bool = True
) -> bytes:
    """A client's frame; its mask is zero, which leaves the payload readable."""
    head = bytes(((0x80 if final else 0) | reserved << 4 | opcode,))
    mask = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes((mask | len(payload),))
    elif len(payload) < 2**16:
        head += bytes((mask | 126,)) + struct.pack(">H", len(payload))
    else:
        head += bytes((mask | 127,)) + struct.pack(">Q", len(payload))
    return head + (bytes(4) if masked else b"") + payload


def upgraded(url: str) -> socket.socket:
    """A socket that has become a WebSocket's."""
    parts = urlsplit(url)
    sock = socket.create_connection((parts.hostname, parts.port), timeout=ANSWER_S)
    sock.sendall(UPGRADE.format(path=parts.path).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        assert byte, answer
        answer += byte
    assert answer.startswith(b"HTTP/1.1 101"), answer
    return sock


def server_frames(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    """The server's frames to the end of the connection: opcode and payload."""
    with sock.makefile("rb") as stream, suppress(ConnectionResetError):
        while head := stream.read(2):
            assert not head[1] & 0x80, "a server masks nothing"
            size = head[1]
            if size >= 126:
                size = int.from_bytes(stream.read(2 if size == 126 else 8), "big")
            yield head[0] & 0xF, stream.read(size)


def close_code(sock: socket.socket) -> int | None:
    """Read up to the server's close: its code, 0 for one without; None: the connection just ended."""
    for opcode, payload in server_frames(sock):
        if opcode == CLOSE:
            return int.from_bytes(payload[:2], "big")
    return None
