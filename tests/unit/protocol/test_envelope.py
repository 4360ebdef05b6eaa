"""Envelopes out of a byte stream."""

from __future__ import annotations

import pytest

from seedance.protocol.envelope import MAGIC, PAYLOAD_BYTES_MAX, EnvelopeDecoder, seal
from seedance.protocol.errors import CloseCode, ProtocolFault


def test_an_envelope_is_magic_length_payload() -> None:
    """`CA FE BA BE`, four bytes of length, highest first, then the payload (§5)."""
    assert seal(b"abc") == bytes.fromhex("cafebabe 00000003 616263")


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 1000])
def test_any_chunking_gives_the_same_payloads(size: int) -> None:
    """Half envelopes and several at once, empty ones among them."""
    payloads = [b"", b"a", bytes(300), MAGIC]
    stream = b"".join(map(seal, payloads))
    decoder = EnvelopeDecoder()
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [payload for chunk in chunks for payload in decoder.feed(chunk)] == payloads


def test_1_mib_is_taken_and_a_byte_more_is_not() -> None:
    """On the way in it closes with 4400 before the payload comes; on the way out it is 1009."""
    largest = bytes(PAYLOAD_BYTES_MAX)
    assert list(EnvelopeDecoder().feed(seal(largest))) == [largest]
    with pytest.raises(ProtocolFault) as fault:
        list(EnvelopeDecoder().feed(MAGIC + (PAYLOAD_BYTES_MAX + 1).to_bytes(4, "big")))
    assert fault.value.close_code is CloseCode.PROTOCOL_ERROR
    with pytest.raises(ProtocolFault) as fault:
        seal(largest + b"x")
    assert fault.value.close_code is CloseCode.MESSAGE_TOO_BIG


@pytest.mark.parametrize("wrong", [b"\xca\xff", b"{", b"\0" * 8, b"\xca\xfe\xba\xbf"])
def test_the_first_wrong_byte_is_found(wrong: bytes) -> None:
    """Nobody waits for a length that means nothing; what was whole before it counts."""
    decoder = EnvelopeDecoder()
    found = decoder.feed(seal(b"good") + wrong)
    assert next(found) == b"good"
    with pytest.raises(ProtocolFault):
        next(found)


def test_what_is_not_whole_is_kept_and_nothing_else() -> None:
    """Memory is bounded by one envelope."""
    decoder = EnvelopeDecoder()
    half = seal(bytes(100))[:50]
    assert list(decoder.feed(seal(b"x") * 1000 + half)) == [b"x"] * 1000
    assert bytes(decoder._pending) == half
