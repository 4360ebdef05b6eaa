"""Whose turn it is to be committed: a ring of places, one taken at each tick.

    tick       n        n + 1      n + 2     …   n + places
    taken   ┌───────┬───────────┬──────────┬───┬───────┐
            │ a  e  │ b         │ c  f     │   │ a  e  │
            └───────┴───────────┴──────────┴───┴───────┘

A session keeps its place, so it is taken once in a round if it has news then; places are given in turn,
so each tick has its share of them. Where that is few, they wait for those of the next ticks, at the longest
until the round is over: an exchange with the store costs as much as what a dozen sessions have to tell.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.session.owner import SessionOwner

__all__ = ["TOGETHER", "Turns"]

# As many as one call of the store's script writes.
TOGETHER = 64


class Turns:
    """Owners that wait for their turn. `places` is the number of ticks in a round."""

    def __init__(self, places: int) -> None:
        self._ring: list[dict[SessionOwner, None]] = [{} for _ in range(places)]
        self._gathered: dict[SessionOwner, None] = {}
        self._given = itertools.count()
        self._tick = 0

    def __bool__(self) -> bool:
        return bool(self._gathered) or any(self._ring)

    def place(self) -> int:
        """A place for a new owner."""
        return next(self._given) % len(self._ring)

    def add(self, owner: SessionOwner) -> None:
        """It has news that can wait."""
        self._ring[owner.place][owner] = None

    def take(self) -> list[SessionOwner]:
        """Whose turn is now."""
        place, self._tick = self._tick % len(self._ring), self._tick + 1
        self._gathered.update(self._ring[place])
        self._ring[place] = {}
        over = self._tick % len(self._ring) == 0
        return self._give() if over or len(self._gathered) >= TOGETHER else []

    def take_all(self) -> list[SessionOwner]:
        """Everybody that waits."""
        for place, waiting in enumerate(self._ring):
            self._gathered.update(waiting)
            self._ring[place] = {}
        return self._give()

    def _give(self) -> list[SessionOwner]:
        given, self._gathered = list(self._gathered), {}
        return given
