"""Bytes below WebSocket's messages: frames (RFC 6455 §5.2) with wounds, in any cut of TCP."""

from __future__ import annotations

import socket
import struct
from urllib.parse import urlsplit

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.mutation import mutated_bytes, pieces
from tests.fuzz.verdict import Verdict

__all__ = ["client_frame", "close_code", "fuzz_wire", "upgraded"]

ANSWER_S = 10.0
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CLOSE = 0x8
OPCODES = (0x0, 0x1, 0x2, CLOSE, 0x9, 0xA)
FAULTS_OF_OURS = {1011, 1012}


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


def close_code(sock: socket.socket) -> int | None:
    """Read the server's frames to the end of the connection: its close code; None: it sent none."""
    data = bytearray()
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    code = None
    while data:
        opcode, size, head = data[0] & 0xF, data[1] & 0x7F, 2
        assert not data[1] & 0x80, "a server masks nothing"
        if size >= 126:
            width = 2 if size == 126 else 8
            size, head = int.from_bytes(data[2 : 2 + width], "big"), 2 + width
        if opcode == CLOSE:
            code = int.from_bytes(data[head : head + 2], "big")
        del data[: head + size]
    return code


@st.composite
def _wires(draw: st.DrawFn) -> list[bytes]:
    frames = st.builds(
        client_frame,
        st.sampled_from(OPCODES),
        st.binary(max_size=130) | st.just(b'{"type":"ping","t":1}'),
        final=st.booleans(),
        reserved=st.sampled_from((0, 0, 0, 0, 1, 4)),
        masked=st.sampled_from((True, True, True, True, False)),
    )
    stream = b"".join(draw(st.lists(frames, min_size=1, max_size=5)))
    if draw(st.booleans()):
        stream = draw(mutated_bytes(st.just(stream)))
    return pieces(draw, stream)


def fuzz_wire(url: str, examples: int, number: int, verdict: Verdict) -> None:
    """As many connections, each sent a few frames and closed from here."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_wires())
    def send(wire: list[bytes]) -> None:
        verdict.sent["connections by bytes"] += 1
        with verdict.judging(wire), upgraded(url) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for piece in wire:
                    sock.sendall(piece)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has heard enough
            code = close_code(sock)
            assert code not in FAULTS_OF_OURS, f"closed with {code}"
            verdict.answers[f"close {code}"] += 1

    send()
