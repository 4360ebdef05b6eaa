"""The one place that reads the time.

`Clock.monotonic` is for durations and deadlines within a process; `Clock.wall_ms` is for stamps
that people and other hosts read, never for arithmetic. Time-to-live across hosts is judged by the
store's clock alone (the store computes it; see gateway.store).
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What tells the time; a simulation brings its own."""

    def monotonic(self) -> float:
        """Seconds, never going back; the zero is arbitrary."""
        ...

    def wall_ms(self) -> int:
        """Unix milliseconds, as good as the host's clock."""
        ...


class SystemClock:
    """The host's clocks."""

    def monotonic(self) -> float:
        """Seconds of the host's monotonic clock."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Unix milliseconds of the host's wall clock."""
        return time.time_ns() // 1_000_000
