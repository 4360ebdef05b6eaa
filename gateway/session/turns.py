"""Whose turn it is to be committed: a ring of places, one taken at each tick.

    tick       n        n + 1      n + 2     …   n + places
    taken   ┌───────┬───────────┬──────────┬───┬───────┐
            │ a  e  │ b         │ c  f     │   │ a  e  │
            └───────┴───────────┴──────────┴───┴───────┘

A session keeps its place, so it is taken once in a round if it has news then; places are given in turn,
so each tick has its share of them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.session.owner import SessionOwner

__all__ = ["Turns"]


class Turns:
    """Owners that wait for their turn. `places` is the number of ticks in a round."""

    def __init__(self, places: int) -> None:
        self._ring: list[dict[SessionOwner, None]] = [{} for _ in range(places)]
        self._given = itertools.count()
        self._tick = 0

    def __bool__(self) -> bool:
        return any(self._ring)

    def place(self) -> int:
        """A place for a new owner."""
        return next(self._given) % len(self._ring)

    def add(self, owner: SessionOwner) -> None:
        """It has news that can wait."""
        self._ring[owner.place][owner] = None

    def take(self) -> list[SessionOwner]:
        """Whose turn is now."""
        place, self._tick = self._tick % len(self._ring), self._tick + 1
        taken, self._ring[place] = self._ring[place], {}
        return list(taken)

    def take_all(self) -> list[SessionOwner]:
        """Everybody that waits."""
        return [owner for _ in self._ring for owner in self.take()]
