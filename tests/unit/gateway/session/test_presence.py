"""Whether the session store takes commits."""

from __future__ import annotations

import pytest

from gateway.session.presence import (
    STEADY_ANSWERS,
    STEADY_S,
    STEADY_WITHIN_S,
    StorePresence,
    StoreState,
)
from gateway.store.belief import SETTLE_S

SOON_S = 0.01


class _Store:
    """A presence, and the clock of the exchanges that it is told of."""

    def __init__(self) -> None:
        self.presence = StorePresence()
        self.now = 1000.0

    def answers(self, takes_s: float = SOON_S, wait_s: float = 0.0) -> bool:
        """One exchange after `wait_s`; whether the store is relied on again."""
        began = self.now + wait_s
        self.now = began + takes_s
        return self.presence.answered(began, self.now)

    def returns(self, gap_s: float) -> int:
        """How many answers it takes until it is relied on."""
        count = 1
        while not self.answers(wait_s=gap_s):
            count += 1
        return count


@pytest.fixture
def store() -> _Store:
    """One that has just gone, and answered once."""
    made = _Store()
    assert made.presence.failed()
    assert not made.presence.failed(), "it is told once"
    assert not made.answers()
    assert made.presence.state is StoreState.STEADYING
    return made


def test_a_store_that_answers_is_there() -> None:
    """However late: only what is not answered counts against a store that was relied on."""
    store = _Store()
    assert not store.answers(takes_s=4 * STEADY_WITHIN_S)
    assert store.presence.state is StoreState.THERE


def test_it_is_back_after_enough_answers_over_long_enough(store: _Store) -> None:
    """Many at once are not enough."""
    began = store.now
    assert store.returns(gap_s=SOON_S) > STEADY_ANSWERS
    assert STEADY_S <= store.now - began <= STEADY_S + 4 * SOON_S
    assert store.presence.state is StoreState.THERE


def test_few_answers_far_apart_are_not_enough(store: _Store) -> None:
    """A store that is seldom asked is back after as many answers, too."""
    assert store.returns(gap_s=STEADY_S) == STEADY_ANSWERS


def test_a_late_answer_begins_anew(store: _Store) -> None:
    """In its very last answer, too, it may turn out to be slow still."""
    for _ in range(STEADY_ANSWERS - 1):
        assert not store.answers(wait_s=STEADY_S)
    assert not store.answers(takes_s=STEADY_WITHIN_S + SOON_S)
    assert store.returns(gap_s=STEADY_S) == STEADY_ANSWERS


def test_one_that_goes_again_was_not_back(store: _Store) -> None:
    """Nobody is told that it went, who was not told that it came."""
    assert not store.presence.failed()
    assert store.presence.state is StoreState.AWAY
    assert not store.answers()
    assert store.returns(gap_s=STEADY_S) == STEADY_ANSWERS


def test_it_is_relied_on_before_others_believe_it() -> None:
    """A resume elsewhere is answered by the store only when owners rely on it again (§4.8)."""
    assert STEADY_S < SETTLE_S
