"""How the mesh's load moves a tenant's rates: base x (1 + 0.5 x load factor), floor to ceiling."""

from __future__ import annotations

import math

from gateway.tenants.model import Rate
from seedance.protocol.pressure import PressureLevel

__all__ = ["ADAPT_S", "LoadFactor", "quota"]

# A level that has just come counts for little: in so many seconds the factor has gone two thirds of
# the way to it, so that a rate does not jump with every burst.
ADAPT_S = 5.0
SWING = 0.5
_FACTORS = {PressureLevel.NONE: 1.0, PressureLevel.THROTTLE: 0.0, PressureLevel.PAUSE: -1.0}


class LoadFactor:
    """1: the instances ask for nothing, there is more to give; 0: they ask for less; -1: they are full.

    It begins at 0: every rate is its base until something is known.
    """

    def __init__(self, now: float) -> None:
        self.value = 0.0
        self._at = now

    def observe(self, level: PressureLevel, now: float) -> float:
        """The factor, after a level that has stood since the last look."""
        keeps = math.exp(-(now - self._at) / ADAPT_S)
        self.value = keeps * self.value + (1 - keeps) * _FACTORS[level]
        self._at = now
        return self.value


def quota(rate: Rate, factor: float) -> float:
    """What the rate is under this load."""
    return min(max(rate.base * (1 + SWING * factor), rate.floor), rate.ceiling)
