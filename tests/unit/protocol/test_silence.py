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


def test_a_message_on_its_way_is_waited_for() -> None:
    """Its sender is asked time and again, and given up after the last piece (CASES 41)."""
    silence = Silence(5, 15, now=100)
    asked = []
    for now in range(101, 140):
        silence.received(now)
        if silence.check(now) is Verdict.ASK:
            asked.append(now)
    assert asked == [105, 110, 115, 120, 125, 130, 135]
    assert silence.check(140) is Verdict.ASK
    assert silence.deadline == 154
    assert silence.check(153.9) is Verdict.FINE
    assert silence.check(154) is Verdict.GONE


def test_pieces_are_no_answer() -> None:
    """What was said to its end counts from its own time, whatever pieces came before."""
    silence = Silence(5, 15, now=100)
    silence.received(103)
    assert silence.check(105) is Verdict.ASK
    silence.heard(106)
    assert silence.deadline == 111
