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
        # The first place whose turn has come since others were taken.
        self._first = 0
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
        over = place + 1 == len(self._ring)
        if not over and sum(map(len, self._ring[self._first : place + 1])) < TOGETHER:
            return []
        first, self._first = self._first, 0 if over else place + 1
        return self._empty(first, place + 1)

    def take_all(self) -> list[SessionOwner]:
        """Everybody that waits."""
        return self._empty(0, len(self._ring))

    def _empty(self, first: int, end: int) -> list[SessionOwner]:
        taken = [owner for place in self._ring[first:end] for owner in place]
        self._ring[first:end] = [{} for _ in range(first, end)]
        return taken
