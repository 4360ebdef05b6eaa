"""Connections are summed exactly, in one pass."""

from __future__ import annotations

import random

from metering.invoice.quantities import RTT_UNITS_PER_MS, ConnectionSpan, sum_connections


def span(opened: int, ended: int, size: int = 0, rtt_us: tuple[int, ...] = ()) -> ConnectionSpan:
    return ConnectionSpan(opened, ended, size, sum(rtt_us), len(rtt_us))


def test_time_is_cut_at_the_edges() -> None:
    """A connection counts in each month for the milliseconds that it was open there."""
    spans = [span(0, 150), span(50, 60), span(90, 400)]
    first = sum_connections(spans[:3], 0, 100)
    second = sum_connections(spans, 100, 500)
    assert (first.open_ms, second.open_ms) == (120, 350)


def test_bytes_belong_where_a_connection_ended() -> None:
    """They cannot be cut, so one month has them all."""
    spans = [span(0, 100, 7), span(0, 99, 3)]
    assert [sum_connections(spans, a, a + 100).bytes for a in (0, 100)] == [3, 7]


def test_average_round_trip_has_no_rounding() -> None:
    """Three samples of 10, 10 and 11 microseconds average to 31/3 of them, exactly."""
    sums = sum_connections([span(0, 1, 3, (10, 10, 11))], 0, 10)
    assert sums.rtt_byte_units * 1000 == 31 * RTT_UNITS_PER_MS
    assert sum_connections([span(0, 1, 3)], 0, 10).rtt_byte_units == 0


def test_peak_and_its_minute() -> None:
    """The most that were open at one moment; one that ends makes room for one that begins."""
    spans = [span(0, 70_000), span(10, 61_000), span(61_000, 62_000), span(61_500, 61_600)]
    sums = sum_connections(spans, 0, 100_000)
    assert (sums.peak, sums.peak_minute_ms) == (3, 60_000)


def test_peak_equals_counting_every_moment() -> None:
    """One pass says what a count at each moment says."""
    for seed in range(50):
        dice = random.Random(seed)
        spans = []
        for _ in range(dice.randrange(20)):
            opened = dice.randrange(60)
            spans.append(span(opened, opened + dice.randrange(30)))
        spans.sort(key=lambda s: s.opened_ms)
        open_at = [sum(s.opened_ms <= t < s.ended_ms for s in spans) for t in range(10, 50)]
        sums = sum_connections(spans, 10, 50)
        assert (sums.peak, sums.open_ms) == (max(open_at), sum(open_at))
