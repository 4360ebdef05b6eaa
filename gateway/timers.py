"""One timer for a whole gateway: everything that waits for time waits here."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from typing import Protocol

from mesh.clock import Clock

__all__ = ["Timed", "TimerWheel"]

log = logging.getLogger("gateway")

# Deadlines closer together than this are served together.
GRAIN_S = 0.05


class Timed(Protocol):
    """Something with a deadline; `armed_at` belongs to the wheel (infinity: not armed)."""

    armed_at: float

    def on_time(self, now: float) -> None:
        """A deadline may have come; arm again for the next one."""
        ...


class TimerWheel:
    """A heap of deadlines with one `call_later` for the earliest.

    A deadline that moves away, as most do with every message, is left where it is: its owner is
    asked once for nothing and arms again. Only an earlier one is entered anew.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Timed]] = []
        self._order = itertools.count()
        self._handle: asyncio.TimerHandle | None = None
        self._next_at = float("inf")

    def arm(self, timed: Timed, at: float) -> None:
        """Call `timed.on_time` at `at` at the latest, or a grain after."""
        if at >= timed.armed_at:
            return
        timed.armed_at = at
        heapq.heappush(self._heap, (at, next(self._order), timed))
        if at < self._next_at:
            self._schedule()

    def disarm(self, timed: Timed) -> None:
        """Forget it; what is in the heap is skipped when its time comes."""
        timed.armed_at = float("inf")

    def close(self) -> None:
        """Call nobody any more."""
        if self._handle is not None:
            self._handle.cancel()
        self._heap.clear()

    def _schedule(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._next_at = self._heap[0][0] if self._heap else float("inf")
        if self._heap:
            delay = max(0.0, self._next_at - self._clock.monotonic()) + GRAIN_S
            self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = self._clock.monotonic()
        due = []
        while self._heap and self._heap[0][0] <= now:
            at, _, timed = heapq.heappop(self._heap)
            if timed.armed_at == at:
                timed.armed_at = float("inf")
                due.append(timed)
        # Who arms for a time that has passed waits for the next round: served in this one, it could
        # hold the loop for ever.
        for timed in due:
            self._tell(timed, now)
        self._schedule()

    def _tell(self, timed: Timed, now: float) -> None:
        try:
            timed.on_time(now)
        except Exception:  # one session's fault must not stop everybody's time
            log.exception("a deadline could not be served")
