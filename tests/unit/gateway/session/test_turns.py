"""Whose turn it is to be committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.session.turns import TOGETHER, Turns


@dataclass(eq=False)
class _Owner:
    place: int


def _owners(turns: Turns, count: int) -> list[Any]:
    return [_Owner(turns.place()) for _ in range(count)]


def test_everybody_has_one_turn_in_a_round() -> None:
    """Where many wait, each tick has its share of them, and nobody is taken twice."""
    turns = Turns(5)
    owners = _owners(turns, 5 * TOGETHER + 2)
    for owner in owners * 2:
        turns.add(owner)
    taken = [turns.take() for _ in range(5)]
    assert sorted(map(len, taken)) == [TOGETHER] * 3 + [TOGETHER + 1] * 2
    assert {id(owner) for turn in taken for owner in turn} == set(map(id, owners))
    assert not turns


def test_few_are_taken_together() -> None:
    """An exchange is not made for a handful: they wait for as many as are worth one, or the round's end."""
    turns = Turns(4)
    owners = _owners(turns, 3 * TOGETHER)
    for owner in owners:
        turns.add(owner)
    assert [len(turns.take()) for _ in range(4)] == [0, 96, 0, 96]
    for owner in owners[:12]:
        turns.add(owner)
    taken = []
    for _ in range(4):
        assert turns
        taken.append(len(turns.take()))
    assert taken == [0, 0, 0, 12]


def test_a_place_is_kept() -> None:
    """Who has news all the time is taken once in a round."""
    turns = Turns(3)
    (owner,) = _owners(turns, 1)
    taken = []
    for _ in range(9):
        turns.add(owner)
        taken.append(len(turns.take()))
    assert sum(taken) == 3


def test_all_may_be_taken_at_once() -> None:
    """For the last commit of a process."""
    turns = Turns(4)
    owners = _owners(turns, 6)
    for owner in owners:
        turns.add(owner)
    assert len(turns.take_all()) == 6
    assert not turns
    assert turns.take_all() == []
