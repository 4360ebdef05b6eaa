"""How many may wait, for how long, and when those who were sent away had better come back."""

from __future__ import annotations

from collections import deque

from inference.engine.limits import EngineLimits
from seedance.protocol.errors import ErrorCode, SeedanceError

__all__ = ["Gate"]

# The service rate is measured over so many beginnings, none older than this.
BEGINNINGS_REMEMBERED = 64
WINDOW_S = 60.0
RETRY_MS_MIN, RETRY_MS_MAX = 100, 30_000


class Gate:
    """Refuses what the engine has no room for, with a time that its own pace makes likely.

    Requests begin at a measured rate. Whoever is refused gets a place in an imagined line: the k-th
    since the last beginnings is asked to return after k of them, so that those who were refused
    together do not come back together.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._beginnings: deque[float] = deque(maxlen=BEGINNINGS_REMEMBERED)
        self._refused = 0

    def begun(self, now: float) -> None:
        """A request has left the queue: its first tokens are computed."""
        self._beginnings.append(now)
        self._refused = max(self._refused - 1, 0)

    def check(self, queued: int, alive: int, now: float) -> None:
        """Raises `overloaded` when one more may not wait, or not live beside `alive` others."""
        if queued >= self._limits.queue_max:
            raise self.full(now)
        if self._limits.concurrent_max is not None and alive >= self._limits.concurrent_max:
            raise self.overloaded("the instance serves as many requests as it may", now)

    def has_expired(self, arrival: float, now: float) -> bool:
        """Whether a request that never ran has waited too long."""
        return now - arrival > self._limits.queue_ttl_s

    def full(self, now: float) -> SeedanceError:
        """The refusal of one more when as many wait as may."""
        return self.overloaded("the instance's queue is full", now)

    def overloaded(self, message: str, now: float) -> SeedanceError:
        """The refusal, and when to come back."""
        self._refused += 1
        return SeedanceError(
            ErrorCode.OVERLOADED, message, retry_after_ms=self._retry_after_ms(now)
        )

    def period_s(self, now: float) -> float:
        """Seconds from one beginning to the next, of late; 0: none was seen."""
        beginnings = self._beginnings
        while beginnings and beginnings[0] < now - WINDOW_S:
            beginnings.popleft()
        return (now - beginnings[0]) / len(beginnings) if beginnings else 0.0

    def _retry_after_ms(self, now: float) -> int:
        period_s = self.period_s(now)
        if not self._beginnings:
            return self._limits.retry_after_ms
        return round(min(max(self._refused * period_s * 1e3, RETRY_MS_MIN), RETRY_MS_MAX))
