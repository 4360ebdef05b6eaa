"""How long an event loop stands still."""

from __future__ import annotations

import asyncio
import gc

import pytest

from mesh.clock import SystemClock
from mesh.pauses import SAMPLES_MAX, SAMPLES_MIN, PauseMeter
from tests.support.clock import FakeClock
from tests.support.waiting import wait_until


def test_one_long_pause_is_no_p99() -> None:
    """Nothing is said from few samples; then a single pause does not count, three do."""
    meter = PauseMeter(FakeClock())
    for _ in range(SAMPLES_MIN - 1):
        meter.sample(0.2)
    assert meter.p99_ms == 0.0
    meter = PauseMeter(FakeClock())
    for n in range(SAMPLES_MIN):
        meter.sample(0.2 if n == 7 else 0.001)
    assert meter.p99_ms == pytest.approx(1.0)
    for _ in range(2):
        meter.sample(0.2)
    assert meter.p99_ms == pytest.approx(200.0)


def test_old_samples_are_forgotten() -> None:
    """A minute after the last pause nothing is left of it."""
    meter = PauseMeter(FakeClock())
    for late_s in [0.2] * SAMPLES_MIN + [0.001] * SAMPLES_MAX:
        meter.sample(late_s)
    assert meter.p99_ms == pytest.approx(1.0)


async def test_a_held_loop_and_a_collection_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick that comes late is a sample, and so is a collection between two ticks."""
    monkeypatch.setattr("mesh.pauses.TICK_S", 0.01)
    clock = SystemClock()
    meter = PauseMeter(clock)
    running = asyncio.create_task(meter.run())
    await wait_until(lambda: meter._samples_s)
    held_until = clock.monotonic() + 0.1
    while clock.monotonic() < held_until:
        pass
    await wait_until(lambda: max(meter._samples_s) > 0.08)
    meter._on_collection("start", {})
    assert meter._on_collection in gc.callbacks
    gc.collect()
    assert meter._collection_s > 0
    running.cancel()
    await asyncio.wait([running])
    assert meter._on_collection not in gc.callbacks
