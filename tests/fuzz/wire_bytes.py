"""Bytes below WebSocket's messages: frames (RFC 6455 §5.2) with wounds, in any cut of TCP."""

from __future__ import annotations

import socket

from hypothesis import given, seed
from hypothesis import strategies as st

from tests.fuzz.mutation import many, mutated_bytes, pieces
from tests.fuzz.verdict import Verdict
from tests.support.raw_websocket import client_frame, close_code, upgraded

__all__ = ["fuzz_wire"]

OPCODES = (0x0, 0x1, 0x2, 0x8, 0x9, 0xA)
FAULTS_OF_OURS = {1011, 1012}


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
    @many(examples)
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
