"""What becomes of chosen tokens."""

from __future__ import annotations

import pytest

from inference.engine.answer import Answer, AnswerRules, FinishReason
from inference.engine.plan import Sampled


def _answer(tokens: list[bytes], **rules: object) -> Answer:
    rules.setdefault("max_tokens", 100)
    return Answer(AnswerRules(**rules), tokens.__getitem__)  # type: ignore[arg-type]


def _take_all(answer: Answer, ids: range) -> FinishReason | None:
    reason = None
    for token_id in ids:
        reason = answer.take(Sampled(1, token_id))
        if reason:
            break
    return reason


def test_a_code_point_over_two_tokens() -> None:
    """CASES 01: U+1F601 in two tokens leaves once, whole, and the next offset is 4."""
    answer = _answer([b"\xf0\x9f", b"\x98\x81", b"x"])
    _take_all(answer, range(3))
    assert answer.piece(0, 1).text == b""
    assert answer.piece(1, 2).text == "😁".encode()
    assert answer.piece(2, 3).offset == 4


def test_a_cut_tail_becomes_a_replacement_character() -> None:
    """CASES 02: an answer that ends inside a code point ends at once, with U+FFFD."""
    answer = _answer([b"a", b"\xf0\x9f"], max_tokens=2)
    assert _take_all(answer, range(2)) is FinishReason.LENGTH
    answer.close()
    assert answer.text.decode() == "a\ufffd"
    assert answer.piece(1, 2).text == "\ufffd".encode()


def test_the_closing_tail_is_a_piece_without_tokens() -> None:
    """What was held when the answer was cut off leaves by itself."""
    answer = _answer([b"so", b" fo"], stop=(" fox",))
    _take_all(answer, range(2))
    assert answer.piece(0, 2).text == b"so"
    answer.close()
    piece = answer.piece(2, 2)
    assert (piece.ids, piece.offset, piece.text) == ([], 2, b" fo")


def test_a_stop_string_ends_it_and_is_no_part_of_it() -> None:
    """CASES 06: the text stops before the stop string, and closing adds nothing."""
    answer = _answer([b"The quick br", b"own", b" fox", b" jumps"], stop=("own fox",))
    assert _take_all(answer, range(4)) is FinishReason.STOP
    answer.close()
    assert answer.text == b"The quick br"
    assert answer.ids == [0, 1, 2]


def test_an_ending_id_is_no_token_of_the_answer() -> None:
    """End-of-text ends the answer; it is neither sent nor counted."""
    answer = _answer([b"a"], ending_ids=frozenset({9}))
    _take_all(answer, range(1))
    assert answer.take(Sampled(1, 9)) is FinishReason.STOP
    assert answer.ids == [0]


def test_stop_strings_wait_for_min_tokens() -> None:
    """Before `min_tokens` a stop string is text like any other."""
    answer = _answer([b".", b"a", b"."], stop=(".",), min_tokens=3)
    assert _take_all(answer, range(3)) is FinishReason.STOP
    assert answer.text == b".a"


def test_a_script_ends_with_stop_even_at_max_tokens() -> None:
    """A list that is played to its end has stopped by itself."""
    answer = _answer([b"a", b"b"], max_tokens=2, script_length=2)
    assert _take_all(answer, range(2)) is FinishReason.STOP


@pytest.mark.parametrize("cut", range(6))
def test_a_continuation_holds_what_the_first_instance_held(cut: int) -> None:
    """Primed with any prefix, the rest comes out as if nothing had happened."""
    tokens = [b"so ", b"\xf0\x9f", b"\x98\x81", b" f", b"o", b"x!"]
    whole = _answer(tokens, stop=(" foxes",))
    _take_all(whole, range(6))
    whole.close()
    continued = _answer(tokens, stop=(" foxes",))
    assert continued.prime(range(cut)) is None
    _take_all(continued, range(cut, 6))
    continued.close()
    assert continued.text == whole.text
    assert continued.piece(cut, 6) == whole.piece(cut, 6)


def test_priming_notices_that_the_answer_was_complete() -> None:
    """The instance died after the last token and before its `done`."""
    assert _answer([b"a", b"b"], max_tokens=2).prime([0, 1]) is FinishReason.LENGTH
    assert _answer([b"a", b"b."], stop=(".",)).prime([0, 1]) is FinishReason.STOP


def test_logprobs_belong_to_the_tokens_chosen_here() -> None:
    """A forced prefix has none, and a replay gives each token its own."""
    answer = _answer([b"a", b"b", b"c"])
    answer.prime([0])
    for token_id in (1, 2):
        answer.take(Sampled(1, token_id, -0.5), keep_logprobs=True)
    assert [s.token_id for s in answer.piece(0, 3).sampled] == [1, 2]
    assert [s.token_id for s in answer.piece(2, 3).sampled] == [2]
