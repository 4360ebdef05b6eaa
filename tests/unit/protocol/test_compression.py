"""The compressing contexts of a connection."""

from __future__ import annotations

import random

import pytest
import zstandard

from seedance.protocol.compression import WINDOW_LOG, Compressor, Decompressor
from seedance.protocol.envelope import PAYLOAD_BYTES_MAX
from seedance.protocol.errors import CloseCode, ProtocolFault


def test_each_payload_is_whole_at_once_and_the_past_is_its_dictionary() -> None:
    """A flush ends every payload; the same text again costs next to nothing (§5)."""
    compressor, decompressor = Compressor(), Decompressor()
    text = b"superposition of two states, measured once"
    sizes = []
    for payload in (text, b"", b"x", text, bytes(PAYLOAD_BYTES_MAX)):
        sent = compressor.compress(payload)
        sizes.append(len(sent))
        assert decompressor.decompress(sent) == payload
    assert sizes[3] < sizes[0] / 2


def test_what_does_not_compress_grows_by_little() -> None:
    """So a `token` frame of 4 KiB of JSON stays under 4 KiB (§1)."""
    noise = zstandard.ZstdCompressor().compress(bytes(range(256)) * 16)
    assert len(Compressor().compress(noise)) <= len(noise) + 12


def _expands_to(size: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=WINDOW_LOG)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(bytes(size))


@pytest.mark.parametrize(
    "payload",
    [
        b"no zstd",
        _expands_to(PAYLOAD_BYTES_MAX + 1),
        _expands_to(64 * PAYLOAD_BYTES_MAX),
        zstandard.ZstdCompressor(level=3).compress(bytes(PAYLOAD_BYTES_MAX)),
    ],
    ids=["nonsense", "a byte too much", "bomb", "window"],
)
def test_what_is_refused(payload: bytes) -> None:
    """4400 for nonsense, for more than 1 MiB, for a window larger than the contract's."""
    with pytest.raises(ProtocolFault) as fault:
        Decompressor().decompress(payload)
    assert fault.value.close_code is CloseCode.PROTOCOL_ERROR


def test_a_bomb_is_not_unpacked() -> None:
    """No more than the room and one piece of output is ever held."""
    decompressor = Decompressor()
    with pytest.raises(ProtocolFault):
        decompressor.decompress(_expands_to(64 * PAYLOAD_BYTES_MAX), room=1000)
    assert sum(map(len, decompressor._sink.parts)) <= 1000


def test_a_connection_holds_what_the_contract_says() -> None:
    """70 kB to compress one direction, 113 kB to decompress the other (§5)."""
    compressor, decompressor = Compressor(), Decompressor()
    for size in range(0, 100_000, 1000):
        decompressor.decompress(compressor.compress(random.randbytes(size)))
    assert compressor.memory_bytes <= 70_000
    assert decompressor.memory_bytes <= 113_000
