"""Tokens per second over the last seconds."""

from __future__ import annotations

from collections import deque

__all__ = ["RateMeter"]

WINDOW_S = 5


class RateMeter:
    """Counts in buckets of a second; the current, unfinished one does not count."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int]] = deque(maxlen=WINDOW_S + 1)

    def add(self, count: int, now: float) -> None:
        """So many tokens now."""
        second = int(now)
        if self._buckets and self._buckets[-1][0] == second:
            self._buckets[-1] = (second, self._buckets[-1][1] + count)
        else:
            self._buckets.append((second, count))

    def per_s(self, now: float) -> float:
        """The mean over the window's whole seconds."""
        current = int(now)
        counted = sum(n for second, n in self._buckets if current - WINDOW_S <= second < current)
        return counted / WINDOW_S
