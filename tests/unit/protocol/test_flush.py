"""Hints where a renderer may commit."""

from __future__ import annotations

from seedance.protocol.flush import CHUNK_TOKENS_MAX, CHUNK_TOKENS_MIN, FlushHints
from seedance.protocol.frames import Token


def hints(*pieces: tuple[str, int]) -> list[int | None]:
    flush, offset, found = FlushHints(), 0, []
    for text, tokens in pieces:
        found.append(flush.after(Token("a", offset, text, 0, tokens)))
        offset += len(text.encode())
    return found


def test_a_paragraphs_end_is_hinted_where_it_is() -> None:
    """The offset is behind the blank line, also when the line is cut between two frames."""
    assert hints(("é.\n\nNext", 3)) == [5]
    assert hints(("one\n", 1), ("\ntwo", 1)) == [None, 5]


def test_a_sentence_ends_a_chunk_of_16_tokens() -> None:
    """Before 16 tokens a full stop is no reason; from then on it is (§3)."""
    assert hints(("a.", CHUNK_TOKENS_MIN - 1)) == [None]
    assert hints(("a.", CHUNK_TOKENS_MIN), ("b.", 1)) == [2, None]


def test_64_tokens_are_a_chunk_anyway() -> None:
    """Text without sentences is committed, too."""
    assert hints(("a", CHUNK_TOKENS_MAX - 1), ("b", 1)) == [None, 2]
