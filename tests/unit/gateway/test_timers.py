"""One timer for everything that waits."""

from __future__ import annotations

import pytest

from gateway.timers import GRAIN_S, TimerWheel
from mesh.clock import SystemClock
from tests.support.waiting import wait_until


class _Alarm:
    """Counts how often its time came; `faulty`: and raises."""

    def __init__(self, *, faulty: bool = False) -> None:
        self.armed_at = float("inf")
        self.calls = 0
        self._faulty = faulty

    def on_time(self, _now: float) -> None:
        self.calls += 1
        if self._faulty:
            raise ValueError


async def test_a_fault_at_one_deadline_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The wheel goes on: for those of the same moment, and for those of later ones."""
    clock = SystemClock()
    wheel = TimerWheel(clock)
    faulty, same, later = _Alarm(faulty=True), _Alarm(), _Alarm()
    now = clock.monotonic()
    for alarm, at in ((faulty, now), (same, now), (later, now + 2 * GRAIN_S)):
        wheel.arm(alarm, at)
    await wait_until(lambda: later.calls)
    wheel.close()
    assert (faulty.calls, same.calls, later.calls) == (1, 1, 1)
    assert "a deadline could not be served" in caplog.text


async def test_what_was_disarmed_is_not_called() -> None:
    """Its entry is skipped when its time comes."""
    clock = SystemClock()
    wheel = TimerWheel(clock)
    off, on = _Alarm(), _Alarm()
    now = clock.monotonic()
    wheel.arm(off, now)
    wheel.arm(on, now)
    wheel.disarm(off)
    await wait_until(lambda: on.calls)
    wheel.close()
    assert off.calls == 0


async def test_only_the_nearest_deadline_counts() -> None:
    """One that moves away is looked at once for nothing; one that comes nearer is entered anew."""
    clock = SystemClock()
    wheel = TimerWheel(clock)
    alarm = _Alarm()
    now = clock.monotonic()
    wheel.arm(alarm, now + 60)
    wheel.arm(alarm, now)
    wheel.arm(alarm, now + 30)
    await wait_until(lambda: alarm.calls)
    wheel.close()
    assert alarm.calls == 1
    assert alarm.armed_at == float("inf")


class _Stubborn:
    """Arms again for a time that has passed, whatever it is told."""

    def __init__(self, wheel: TimerWheel, at: float) -> None:
        self.armed_at = float("inf")
        self.calls = 0
        self._wheel = wheel
        self._at = at

    def on_time(self, _now: float) -> None:
        self.calls += 1
        self._wheel.arm(self, self._at)


async def test_a_deadline_that_stays_in_the_past_does_not_hold_the_loop() -> None:
    """Who arms for the past is asked once a round; others are served, and the loop turns."""
    clock = SystemClock()
    wheel = TimerWheel(clock)
    now = clock.monotonic()
    first, second = _Stubborn(wheel, now - 2), _Stubborn(wheel, now - 1)
    first.on_time(now)
    second.on_time(now)
    await wait_until(lambda: first.calls >= 3 and second.calls >= 3)
    wheel.close()
    assert max(first.calls, second.calls) <= 5
