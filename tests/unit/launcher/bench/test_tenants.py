"""When the bench says that a quiet tenant is left alone, and when that it cannot tell."""

from __future__ import annotations

import random

import pytest

from launcher.bench.tenants import Round, decided, rise_between


def _rounds(count: int, rise: float, spread_s: float) -> list[Round]:
    draw = random.Random(7)

    def phase(times: float) -> list[float]:
        busy = draw.uniform(0, spread_s)  # what the machine does for a moment
        return [times * draw.uniform(0.050, 0.060) + busy for _ in range(40)]

    return [Round(phase(1.0), phase(1.0 + rise)) for _ in range(count)]


@pytest.mark.parametrize(
    ("rise", "spread_s", "verdict"),
    [(0.0, 0.0, True), (0.2, 0.0, False), (0.0, 0.2, None)],
)
def test_the_interval_decides(rise: float, spread_s: float, verdict: bool | None) -> None:
    """Met and missed on a quiet machine; on a busy one the interval says that it cannot be told."""
    low, high = rise_between(_rounds(20, rise, spread_s))
    assert low <= high
    assert decided(low, high) is verdict
    assert decided(low, high, busy=True) is None
