"""A clock that a test moves."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """`mesh.clock.Clock` that stands still until it is advanced."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return round(self.now * 1000)

    def advance(self, seconds: float) -> None:
        self.now += seconds
