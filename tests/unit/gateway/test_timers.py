"""The timer wheel: everybody is asked in time, and nobody can hold the loop."""

from __future__ import annotations

import asyncio

from gateway.timers import GRAIN_S, TimerWheel
from tests.support.clock import FakeClock


class Stubborn:
    """Arms again for a time that has passed, whatever it is told."""

    armed_at = float("inf")

    def __init__(self, wheel: TimerWheel, at: float) -> None:
        self.asked = 0
        self._wheel = wheel
        self._at = at

    def on_time(self, _now: float) -> None:
        self.asked += 1
        self._wheel.arm(self, self._at)


async def test_a_deadline_that_stays_in_the_past_does_not_hold_the_loop() -> None:
    """Who arms for the past is asked once a round; others are served, and the loop turns."""
    clock = FakeClock()
    wheel = TimerWheel(clock)
    stubborn, other = (Stubborn(wheel, clock.monotonic() - late) for late in (2, 1))
    for timed in (stubborn, other):
        timed.on_time(0)
    await asyncio.sleep(3.5 * GRAIN_S)
    wheel.close()
    assert 2 <= stubborn.asked <= 5
    assert 2 <= other.asked <= 5


async def test_who_is_disarmed_is_not_asked() -> None:
    """After `disarm` the deadline in the heap means nothing."""
    clock = FakeClock()
    wheel = TimerWheel(clock)
    timed = Stubborn(wheel, clock.monotonic() - 1)
    wheel.arm(timed, clock.monotonic() - 1)
    wheel.disarm(timed)
    await asyncio.sleep(2 * GRAIN_S)
    wheel.close()
    assert timed.asked == 0
