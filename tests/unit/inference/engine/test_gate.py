"""Who is refused, and when they are asked to come back."""

from __future__ import annotations

import pytest

from inference.engine.gate import RETRY_MS_MAX, RETRY_MS_MIN, WINDOW_S, Gate
from inference.engine.limits import EngineLimits
from seedance.protocol.errors import ErrorCode, SeedanceError


def _refused(gate: Gate, queued: int, alive: int, now: float) -> SeedanceError:
    with pytest.raises(SeedanceError) as caught:
        gate.check(queued, alive, now)
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.retryable
    return caught.value


def test_both_bounds() -> None:
    """The queue's and that of all requests alive; below them everybody comes in."""
    gate = Gate(EngineLimits(queue_max=3, concurrent_max=10))
    gate.check(2, 9, 0.0)
    assert "queue" in _refused(gate, 3, 9, 0.0).message
    assert "as many" in _refused(gate, 0, 10, 0.0).message
    Gate(EngineLimits()).check(0, 1_000_000, 0.0)


def test_the_time_to_come_back_follows_the_measured_rate() -> None:
    """Two a second begin: the first refused comes after half a second, the third after three halves."""
    gate = Gate(EngineLimits(queue_max=1, retry_after_ms=1234))
    assert _refused(gate, 1, 1, 0.0).retry_after_ms == 1234
    gate.begun(0.0)
    for beginning in range(10):
        gate.begun(beginning / 2)
    times = [_refused(gate, 1, 1, 5.0).retry_after_ms for _ in range(3)]
    assert times == pytest.approx([455, 909, 1364], abs=1)
    gate.begun(5.0)
    gate.begun(5.0)
    again = _refused(gate, 1, 1, 5.0).retry_after_ms
    assert again is not None
    assert again < 909


def test_the_time_to_come_back_is_bounded() -> None:
    """Neither at once nor in an hour; a rate of long ago is no rate."""
    gate = Gate(EngineLimits(queue_max=1, retry_after_ms=1234))
    gate.begun(0.0)
    assert _refused(gate, 1, 1, 0.001).retry_after_ms == RETRY_MS_MIN
    for _ in range(1000):
        last = _refused(gate, 1, 1, 50.0)
    assert last.retry_after_ms == RETRY_MS_MAX
    assert _refused(gate, 1, 1, 1.0 + WINDOW_S).retry_after_ms == 1234


def test_waiting_has_an_end() -> None:
    """Longer than the time to live is too long."""
    gate = Gate(EngineLimits(queue_ttl_s=5))
    assert not gate.has_expired(10.0, 15.0)
    assert gate.has_expired(10.0, 15.1)
