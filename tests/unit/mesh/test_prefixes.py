"""The marks by which gateways and instances speak of a prompt's beginning."""

from __future__ import annotations

from mesh.prefixes import MARKS_MAX, PIECE_BYTES, prefix_marks
from seedance.protocol.request import ChatMessage, GenerateRequest


def _chat(*turns: str) -> GenerateRequest:
    return GenerateRequest(messages=tuple(ChatMessage("user", text) for text in turns))


def test_a_longer_conversation_begins_with_the_marks_of_the_shorter() -> None:
    """The next turn has the marks of the turn before, and more of its own."""
    first = prefix_marks("t", _chat("a" * 1_500))
    then = prefix_marks("t", _chat("a" * 1_500, "b" * 1_500))
    assert len(first) == 2
    assert len(then) > len(first)
    assert then[: len(first)] == first


def test_marks_part_where_the_texts_part() -> None:
    """From the first piece that differs on no mark is the same."""
    one = prefix_marks("t", _chat("a" * 1_000 + "b" + "c" * 2_000))
    other = prefix_marks("t", _chat("a" * 1_000 + "B" + "c" * 2_000))
    assert one[0] == other[0]
    assert not set(one[1:]) & set(other[1:])


def test_the_salt_is_the_tenants() -> None:
    """CASES 80: the same text of another tenant has no mark in common with it."""
    text = _chat("a" * 5_000)
    assert not set(prefix_marks("t", text)) & set(prefix_marks("u", text))


def test_turns_cannot_be_shifted_into_each_other() -> None:
    """Where a turn ends, and whose it is, is part of the text."""
    one, other = _chat("a" * 400, "b" * 400), _chat("a" * 401, "b" * 399)
    assert prefix_marks("t", one) != prefix_marks("t", other)


def test_short_and_long_and_numbers() -> None:
    """Less than a piece has no mark, the longest prompt has a bounded number, ids have none."""
    assert prefix_marks("t", GenerateRequest(prompt="a" * (PIECE_BYTES - 1))) == ()
    assert len(prefix_marks("t", GenerateRequest(prompt="a" * PIECE_BYTES))) == 1
    assert len(prefix_marks("t", GenerateRequest(prompt="é" * 500_000))) == MARKS_MAX
    assert prefix_marks("t", GenerateRequest(prompt_token_ids=tuple(range(9_999)))) == ()
