"""Figures of a log by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from metering.roi.access_log import Access
from metering.roi.measure import Bursts, Traffic, bursts_of, measure


def access(ended_ms: int, status: int = 200, duration_ms: int | None = 100) -> Access:
    return Access(ended_ms, status, 10, duration_ms, None, 1, 0, 2)


def per_minute(*counts: int) -> Traffic:
    """Traffic with so many requests in one minute after another."""
    times = (at * 60_000 for at, count in enumerate(counts) for _ in range(count))
    traffic = measure(access(time) for time in times)
    assert traffic is not None
    return traffic


def test_figures() -> None:
    """Counts, errors, percentiles by nearest rank, the peak, and minutes without a request."""
    made = [access(1_000 * n, 500 if n == 7 else 200, 10 * n) for n in range(1, 101)]
    traffic = measure([*made, access(200_000, 404, None)])
    assert traffic is not None
    assert (traffic.requests, traffic.errors) == (101, 2)
    assert (traffic.p50_ms, traffic.p99_ms) == (500, 990)
    assert traffic.per_minute == (59, 41, 0, 1)
    assert traffic.burst_factor == Fraction(59 * 4, 101)
    assert traffic.quantities.connections.peak == 1
    assert traffic.quantities.tokens[0].output == 202


def test_time_before_the_first_minute_counts() -> None:
    """A request that ended in the log's first second had begun before it."""
    traffic = measure([access(60_001, duration_ms=5_000)])
    assert traffic is not None
    assert traffic.quantities.connections.open_ms == 5_000


def test_bursts_and_their_cool_down() -> None:
    """A cool-down of 1.5 times the longest burst joins bursts that are close: one start, not two."""
    traffic = per_minute(1, 1, 9, 9, 1, 9, 1, 1, 1, 1, 1, 1)
    assert bursts_of(traffic, Fraction(2)) == Bursts(
        Fraction(2), bursts=2, longest_min=2, cool_down_min=3, starts=1, extra_min=7
    )


def test_steady_traffic_has_no_burst() -> None:
    """Nothing over the threshold, nothing to scale out for."""
    found = bursts_of(per_minute(3, 3, 3), Fraction(1))
    assert (found.bursts, found.starts, found.extra_min) == (0, 0, 0)


def test_no_request_is_no_traffic() -> None:
    """An empty log has no figures."""
    assert measure([]) is None


def test_log_of_a_wrong_clock() -> None:
    """A span beyond a year is refused before it fills memory with minutes."""
    with pytest.raises(ValueError, match="more than a year"):
        measure([access(0), access(10**14)])
