"""A layer's timer."""

from __future__ import annotations

from seedance.protocol.silence import Silence, Verdict


def test_it_asks_once_and_then_gives_up() -> None:
    """One question after the first time, the end after the second."""
    silence = Silence(5, 15, now=100)
    assert silence.check(104.9) is Verdict.FINE
    assert silence.deadline == 105
    assert silence.check(105) is Verdict.ASK
    assert silence.check(106) is Verdict.FINE
    assert silence.deadline == 115
    assert silence.check(115) is Verdict.GONE


def test_anything_heard_begins_anew() -> None:
    """An answer, or any other word, is a sign of life."""
    silence = Silence(5, 15, now=100)
    silence.check(105)
    silence.heard(106)
    assert silence.check(110) is Verdict.FINE
    assert silence.check(111) is Verdict.ASK


def test_an_older_word_changes_nothing() -> None:
    """Stamps may arrive late."""
    silence = Silence(5, 15, now=100)
    silence.heard(90)
    assert silence.deadline == 105
