"""WebSocket frames of a light client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.loadtest.framing import Opcode, framed, take_frames, upgrade_request


def _from_server(opcode: int, payload: bytes) -> bytes:
    """The same frame as a server writes it: without a mask."""
    size = len(payload)
    if size < 126:
        return bytes((opcode, size)) + payload
    if size < 65_536:
        return bytes((opcode, 126)) + size.to_bytes(2, "big") + payload
    return bytes((opcode, 127)) + size.to_bytes(8, "big") + payload


@given(st.lists(st.integers(0, 300), max_size=8), st.integers(1, 40))
def test_frames_are_found_however_they_are_cut(sizes: list[int], cut: int) -> None:
    """Every chunking of the bytes gives the same frames, and nothing is left."""
    sent = [(Opcode.TEXT, bytes([at]) * size) for at, size in enumerate(sizes)]
    stream = b"".join(_from_server(*frame) for frame in sent)
    buffer, found = bytearray(), []
    for at in range(0, len(stream), cut):
        buffer += stream[at : at + cut]
        found += take_frames(buffer)
    assert found == sent
    assert not buffer


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_lengths_at_the_edges_of_their_forms(size: int) -> None:
    """RFC 6455 §5.2: 7, 16 and 64 bits, in both directions; a client's frame is masked."""
    payload = b"x" * size
    assert take_frames(bytearray(_from_server(0x82, payload))) == [(0x82, payload)]
    frame = framed(Opcode.BINARY, payload)
    head = 2 if size < 126 else 4 if size < 65_536 else 10
    assert frame[1] & 0x80
    assert frame[head : head + 4] == bytes(4)
    assert frame[head + 4 :] == payload


def test_the_upgrade_asks_for_what_was_offered() -> None:
    """The request names host, path and headers, and ends."""
    request = upgrade_request("h:1", "/v2/infer", {"Authorization": "Bearer k"}).decode()
    assert request.startswith("GET /v2/infer HTTP/1.1\r\nHost: h:1\r\n")
    assert "\r\nAuthorization: Bearer k\r\n" in request
    assert request.endswith("\r\n\r\n")
