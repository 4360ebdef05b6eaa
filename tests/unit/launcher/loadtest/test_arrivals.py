"""When requests come and whose they are."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from launcher.loadtest.arrivals import Arrivals, Zipf, arrival_times


def _times(kind: Arrivals, rate: float, duration_s: float, seed: int = 1) -> list[float]:
    return list(arrival_times(kind, rate, duration_s, 2.0, random.Random(seed)))


def test_fixed_arrivals_are_evenly_spaced() -> None:
    """A rate of 4 for 1 s is a request every 250 ms, none at its end."""
    assert _times(Arrivals.FIXED, 4, 1) == [0, 0.25, 0.5, 0.75]


def test_poisson_arrivals_have_their_rate_and_their_variance() -> None:
    """About rate × time requests, gaps as irregular as they are long, and the same for one seed."""
    times = _times(Arrivals.POISSON, 100, 100)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.1)
    assert times == _times(Arrivals.POISSON, 100, 100)
    assert times != _times(Arrivals.POISSON, 100, 100, seed=2)


def test_a_burst_has_all_of_its_period() -> None:
    """At 3 requests/s, every 2 s six of them in one moment."""
    assert _times(Arrivals.BURSTS, 3, 5) == [0.0] * 6 + [2.0] * 6 + [4.0] * 6


def test_a_closed_loop_has_no_times() -> None:
    """It asks when it was answered."""
    with pytest.raises(ValueError, match="closed"):
        _times(Arrivals.CLOSED, 1, 1)


def test_zipf_gives_the_first_most() -> None:
    """At exponent 1 the first of ten has twice the second's share; at 0 all have the same."""
    rng = random.Random(3)
    skewed, even = Zipf(10, 1.0, rng), Zipf(10, 0.0, rng)
    drawn = Counter(skewed.draw() for _ in range(50_000))
    assert drawn[0] / drawn[1] == pytest.approx(2, rel=0.1)
    assert set(drawn) == set(range(10))
    evenly = Counter(even.draw() for _ in range(50_000))
    assert max(evenly.values()) / min(evenly.values()) < 1.1
