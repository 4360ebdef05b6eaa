"""The mesh's load moves a tenant's rate: base x (1 + 0.5 x factor), floor to ceiling."""

from __future__ import annotations

import pytest

from gateway.tenants.model import Rate
from gateway.tenants.quota import ADAPT_S, LoadFactor, quota
from seedance.protocol.pressure import PressureLevel


@pytest.mark.parametrize(
    ("factor", "floor", "ceiling", "expected"),
    [
        (0.0, 1, 1000, 100),
        (1.0, 1, 1000, 150),
        (-1.0, 1, 1000, 50),
        (1.0, 100, 120, 120),
        (-1.0, 80, 120, 80),
        (0.3, 100, 100, 100),
    ],
)
def test_a_rate_moves_between_floor_and_ceiling(
    factor: float, floor: float, ceiling: float, expected: float
) -> None:
    """Half as much more when the mesh is free, half less when it is full; else it stands still."""
    assert quota(Rate(100, 100, floor, ceiling), factor) == pytest.approx(expected)


def test_the_factor_follows_what_the_instances_ask_for() -> None:
    """It begins in the middle and goes two thirds of the way in `ADAPT_S`, up as down."""
    load = LoadFactor(0.0)
    assert load.observe(PressureLevel.NONE, 0.0) == 0
    assert load.observe(PressureLevel.NONE, ADAPT_S) == pytest.approx(0.632, abs=1e-3)
    assert load.observe(PressureLevel.NONE, 20 * ADAPT_S) == pytest.approx(1)
    assert load.observe(PressureLevel.PAUSE, 40 * ADAPT_S) == pytest.approx(-1)
    assert load.observe(PressureLevel.THROTTLE, 60 * ADAPT_S) == pytest.approx(0, abs=1e-6)
