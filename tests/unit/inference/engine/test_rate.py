"""Tokens per second."""

from __future__ import annotations

from inference.engine.rate import RateMeter


def test_the_mean_over_whole_seconds() -> None:
    """The current second is not over and does not count; old ones are forgotten."""
    meter = RateMeter()
    for tenth in range(50):
        meter.add(10, 100 + tenth / 10)
    assert meter.per_s(105.0) == 100
    meter.add(1000, 105.5)
    assert meter.per_s(105.9) == 100
    assert meter.per_s(120) == 0
