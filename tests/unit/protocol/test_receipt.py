"""`seedance.protocol.receipt`: the hash that another process can go on with, and the bytes that are signed."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from seedance.protocol.frames import Usage
from seedance.protocol.receipt import BLOCK_BYTES, TextDigest, receipt_body, signed_bytes


def _by_the_book(text: bytes) -> str:
    digest = bytes(32)
    for at in range(0, len(text), BLOCK_BYTES):
        digest = hashlib.sha256(digest + text[at : at + BLOCK_BYTES]).digest()
    return digest.hex()


@given(st.binary(max_size=2000), st.lists(st.integers(0, 2000), max_size=8))
def test_the_hash_is_of_the_text_and_not_of_its_pieces(text: bytes, cuts: list[int]) -> None:
    """However it is cut, and handed over at every cut, it is the chain that the contract describes."""
    digest = TextDigest()
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
        digest = TextDigest(digest.state())
        digest.update(text[begin:end])
        assert len(digest.state()) < 32 + BLOCK_BYTES
    assert digest.hexdigest() == _by_the_book(text)


def test_what_is_signed_is_everything_but_the_signature() -> None:
    """RFC 8785's form: what another language's sorted, compact JSON is, byte for byte."""
    receipt = receipt_body("S", 'q"\u00e9\n', TextDigest(), Usage(3, 1, 2), "k") | {
        "signature": "x"
    }
    assert (
        signed_bytes(receipt)
        == (
            '{"format":1,"id":"q\\"\u00e9\\n","key":"k","session":"S","text_hash":"'
            + "00" * 32
            + '",'
            '"usage":{"cached_tokens":1,"completion_tokens":2,"prompt_tokens":3,"total_tokens":5}}'
        ).encode()
    )
