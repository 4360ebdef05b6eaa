"""Bytes to text."""

from __future__ import annotations

import pytest

from inference.engine.detokenizer import Detokenizer


@pytest.mark.parametrize(
    ("pieces", "texts", "tail"),
    [
        ([b"\xf0\x9f", b"\x98\x81"], ["", "😁"], ""),
        ([b"a", b"\xf0\x9f"], ["a", ""], "\ufffd"),
        ([b"\xff", b"b"], ["\ufffd", "b"], ""),
        ([b"\xf0\x9f", b"b"], ["", "\ufffdb"], ""),
        ([b"", b"\xe9\x87", b"", b"\x8f"], ["", "", "", "量"], ""),
    ],
)
def test_whole_code_points_leave_at_once(pieces: list[bytes], texts: list[str], tail: str) -> None:
    """CASES 01, 02: what is whole leaves, what can never be is U+FFFD, an open tail is held."""
    detokenizer = Detokenizer()
    assert [detokenizer.push(piece) for piece in pieces] == texts
    assert detokenizer.flush() == tail
