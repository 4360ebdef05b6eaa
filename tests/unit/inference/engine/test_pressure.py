"""When the engine asks for less."""

from __future__ import annotations

from inference.engine.messages import PressureLevel
from inference.engine.pressure import PressureGauge


def test_levels_by_queue() -> None:
    """Half full throttles, full pauses, each said once."""
    gauge = PressureGauge(queue_max=100, total_blocks=100)
    said = [gauge.update(depth, 100) for depth in (0, 49, 50, 60, 100, 100)]
    assert [p and p.level for p in said] == [
        None,
        None,
        PressureLevel.THROTTLE,
        None,
        PressureLevel.PAUSE,
        None,
    ]


def test_a_level_is_left_well_below_its_mark() -> None:
    """Around a mark it does not flap."""
    gauge = PressureGauge(queue_max=100, total_blocks=100)
    gauge.update(50, 100)
    assert gauge.update(49, 100) is None
    assert gauge.update(51, 100) is None
    left = gauge.update(30, 100)
    assert left is not None
    assert left.level is PressureLevel.NONE


def test_few_free_blocks_matter_only_while_somebody_waits() -> None:
    """A full batch that nobody queues behind is as it should be."""
    gauge = PressureGauge(queue_max=100, total_blocks=100)
    assert gauge.update(0, 0) is None
    pressed = gauge.update(1, 0)
    assert pressed is not None
    assert pressed.level is PressureLevel.PAUSE
    assert pressed.free_blocks == 0
