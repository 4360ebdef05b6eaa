"""When requests come, and whose they are: decided before the run, from a seed, without a clock."""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from collections.abc import Iterator
from enum import StrEnum

__all__ = ["Arrivals", "Zipf", "arrival_times"]


class Arrivals(StrEnum):
    """How requests come.

    All but `CLOSED` are open loops: they come when they come, however long the server takes.
    """

    CLOSED = "closed"
    FIXED = "fixed"
    POISSON = "poisson"
    BURSTS = "bursts"


def arrival_times(
    kind: Arrivals, rate: float, duration_s: float, burst_every_s: float, rng: random.Random
) -> Iterator[float]:
    """Seconds from the start of each request of an open loop, rising, below `duration_s`.

    `rate` is requests per second on average; of `BURSTS` all of a period come at its beginning.
    """
    times: Iterator[float]
    match kind:
        case Arrivals.FIXED:
            times = (n / rate for n in itertools.count())
        case Arrivals.POISSON:
            gaps = (rng.expovariate(rate) for _ in itertools.count())
            times = itertools.accumulate(gaps)
        case Arrivals.BURSTS:
            size = max(1, round(rate * burst_every_s))
            times = (n // size * burst_every_s for n in itertools.count())
        case _:
            raise ValueError("a closed loop asks when it was answered")
    return itertools.takewhile(lambda at: at < duration_s, times)


class Zipf:
    """Draws 0…n-1, the k-th with a share of 1/(k+1)^s: s = 0 is even, s = 1 what traffic is like."""

    def __init__(self, n: int, s: float, rng: random.Random) -> None:
        self._edges = list(itertools.accumulate((rank + 1) ** -s for rank in range(n)))
        self._rng = rng

    def draw(self) -> int:
        """One of them."""
        return bisect(self._edges, self._rng.random() * self._edges[-1])
