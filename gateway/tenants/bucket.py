"""A token bucket that says exactly when it will have room.

Amounts and times are whole numbers inside (a unit's billionth, microseconds), so that whoever comes
back after the time that was named finds room, and whoever comes a millisecond sooner does not.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Standing", "TokenBucket"]

_UNIT = 10**9
_US = 10**6


@dataclass(frozen=True, slots=True)
class Standing:
    """How full a bucket is: `room` of `burst` whole units, and full again in so many milliseconds."""

    burst: int
    room: int
    full_in_ms: int


class TokenBucket:
    """`rate` units flow in per second, up to `burst`; it begins full.

    A rate is kept to a thousandth of a unit per second. Of more than `burst` at once the excess is
    a debt: it passes when the bucket is full, and the next one waits for longer.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._at = round(now * _US)
        self._rate = 1
        self._cap = self._level = 0
        self.adjust(rate, burst, now)
        self._level = self._cap

    def adjust(self, rate: float, burst: float, now: float) -> None:
        """Another rate from now on; what is in it stays, as far as it fits."""
        self._flow(now)
        self._rate = max(1, round(rate * 1000))
        self._cap = round(burst * _UNIT)
        self._level = min(self._level, self._cap)

    def take(self, cost: int, now: float) -> int:
        """Take `cost` units if they are there: 0; else take nothing: milliseconds to come back in."""
        wait_ms = self.wait_ms(cost, now)
        if not wait_ms:
            self._level -= cost * _UNIT
        return wait_ms

    def spend(self, cost: int, now: float) -> None:
        """Take `cost` units whether they are there or not."""
        self._flow(now)
        self._level -= cost * _UNIT

    def give_back(self, units: int, now: float) -> None:
        """Units that were taken and not used."""
        self._flow(now)
        self._level = min(self._cap, self._level + units * _UNIT)

    def wait_ms(self, cost: int, now: float) -> int:
        """Milliseconds until `cost` units can be taken; 0: now."""
        self._flow(now)
        missing = min(cost * _UNIT, self._cap) - self._level
        if missing <= 0:
            return 0
        us = -(-missing // self._rate)
        return -(-us // 1000)

    def room(self, now: float) -> int:
        """Whole units that are there; below 0: a debt."""
        self._flow(now)
        return self._level // _UNIT

    def standing(self, now: float) -> Standing:
        """How full it is; a debt is no room."""
        burst = self._cap // _UNIT
        return Standing(burst, max(0, self.room(now)), self.wait_ms(burst + 1, now))

    def _flow(self, now: float) -> None:
        at = round(now * _US)
        if at > self._at:
            # A thousandth of a unit per second is a billionth of it per microsecond.
            self._level = min(self._cap, self._level + (at - self._at) * self._rate)
            self._at = at
