"""Whose turn it is to be committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.session.turns import Turns


@dataclass(eq=False)
class _Owner:
    place: int


def _owners(turns: Turns, count: int) -> list[Any]:
    return [_Owner(turns.place()) for _ in range(count)]


def test_everybody_has_one_turn_in_a_round() -> None:
    """Each tick has its share of those that wait, and nobody is taken twice."""
    turns = Turns(5)
    owners = _owners(turns, 12)
    for owner in owners * 2:
        turns.add(owner)
    taken = [turns.take() for _ in range(5)]
    assert sorted(map(len, taken)) == [2, 2, 2, 3, 3]
    assert {id(owner) for turn in taken for owner in turn} == set(map(id, owners))
    assert not turns


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
