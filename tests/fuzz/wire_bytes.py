"""Bytes below WebSocket's messages: frames (RFC 6455 §5.2) with wounds, in any cut of TCP."""

from __future__ import annotations

import socket

from tests.fuzz.mutation import Wounds
from tests.fuzz.verdict import Verdict
from tests.support.raw_websocket import client_frame, close_code, upgraded

__all__ = ["fuzz_wire"]

OPCODES = (0x0, 0x1, 0x2, 0x8, 0x9, 0xA)
FAULTS_OF_OURS = {1011, 1012}
PAYLOAD_BYTES_MAX = 130  # past 125 the length is written in another way
PING = b'{"type":"ping","t":1}'
FRAMES_MAX = 5


def _wire(wounds: Wounds) -> list[bytes]:
    random = wounds.random
    stream = b"".join(
        client_frame(
            random.choice(OPCODES),
            random.choice((random.randbytes(random.randint(0, PAYLOAD_BYTES_MAX)), PING)),
            final=random.random() < 0.5,
            reserved=random.choice((0, 0, 0, 0, 1, 4)),
            masked=random.random() < 0.8,
        )
        for _ in range(random.randint(1, FRAMES_MAX))
    )
    if random.random() < 0.5:
        stream = wounds.in_bytes(stream)
    return wounds.in_pieces(stream)


def fuzz_wire(url: str, examples: int, number: int, verdict: Verdict) -> None:
    """As many connections, each sent a few frames and closed from here."""
    wounds = Wounds(number)
    for _ in range(examples):
        wire = _wire(wounds)
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
