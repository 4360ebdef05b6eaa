"""One answer on its way into the figures."""

from __future__ import annotations

import hashlib

import pytest

from launcher.loadtest.prompts import Prompt, Prompts
from launcher.loadtest.tally import Answer, Judge, Tally

SAID = Prompt([{"role": "user", "content": "x"}], hashlib.sha256(b"one two").hexdigest())
OPEN = Prompt([{"role": "user", "content": "x"}])


def _answer(tally: Tally, prompt: Prompt = SAID, judge: Judge | None = None) -> Answer:
    own = judge or Judge(Prompts([prompt], comparable=True))
    return Answer(prompt, 100.0, tally, own, lambda: None, started=99.0)


def test_waiting_counts_from_when_it_was_due() -> None:
    """Sent late or answered late, the first token's time is the same (no coordinated omission)."""
    tally = Tally()
    answer = _answer(tally)
    answer.heard(b"one", 1, 105.0)
    answer.heard(b" two", 2, 105.5)
    answer.end()
    assert tally.ttft.quantile(1) == pytest.approx(5, rel=0.01)
    assert tally.gap.quantile(1) == pytest.approx(0.5, rel=0.01)
    assert (tally.tokens, tally.seconds[6], tally.exact, tally.inexact) == (3, 3, 1, 0)


@pytest.mark.parametrize("pieces", [[b"one"], [b"one two", b" two"], [b"two ", b"one"]])
def test_what_is_lost_doubled_or_swapped_is_not_exact(pieces: list[bytes]) -> None:
    """The whole text counts, not its length."""
    tally = Tally()
    answer = _answer(tally)
    for piece in pieces:
        answer.heard(piece, 1, 101.0)
    answer.end()
    assert (tally.exact, tally.inexact) == (0, 1)


def test_repeats_are_compared_with_the_first() -> None:
    """Of a model's answers the first proves nothing; a different one is found."""
    tally = Tally()
    judge = Judge(Prompts([OPEN], comparable=True))
    for text in (b"a", b"a", b"b"):
        answer = _answer(tally, OPEN, judge)
        answer.heard(text, 1, 101.0)
        answer.end()
    assert (tally.answered, tally.exact, tally.inexact) == (3, 1, 1)


def test_an_answer_ends_once() -> None:
    """A connection that breaks behind the last frame is no second end."""
    tally = Tally()
    answer = _answer(tally)
    answer.end("overloaded")
    answer.end("connection_lost")
    answer.end()
    assert dict(tally.errors) == {"overloaded": 1}
    assert tally.answered == 0


def test_a_slow_reader_times_only_itself() -> None:
    """Its text is checked, its times are not the server's."""
    tally = Tally()
    answer = _answer(tally)
    answer.slow = True
    answer.heard(b"one two", 2, 190.0)
    answer.end()
    assert (tally.exact, tally.ttft.count, tally.total.count) == (1, 0, 0)


def test_the_servers_count_replaces_ours() -> None:
    """A piece may hold several tokens: the usage says how many."""
    tally = Tally()
    answer = _answer(tally)
    answer.heard(b"one two", 1, 101.0)
    answer.recount(2)
    assert (answer.tokens, tally.tokens, sum(tally.seconds.values())) == (2, 2, 2)


def test_rounds_add_up() -> None:
    """Every count of a merged tally is the sum."""
    one, two = Tally(), Tally()
    for tally in (one, two):
        answer = _answer(tally)
        answer.heard(b"one two", 2, 101.0)
        answer.end()
        tally.elapsed_s, tally.in_time = 2.0, 2
    one.merge(two)
    assert (one.asked, one.exact, one.tokens, one.in_time, one.elapsed_s) == (2, 2, 4, 4, 4.0)
    assert one.ttft.count == 2
