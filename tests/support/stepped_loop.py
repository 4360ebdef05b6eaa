"""The part of an event loop that calls back, on time that the test moves."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

__all__ = ["SteppedLoop"]


class SteppedLoop(asyncio.AbstractEventLoop):
    """`run_to` does what is due by then, in order."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._due: list[tuple[float, int, asyncio.Handle]] = []

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: object, context: object = None):
        handle = asyncio.Handle(callback, args, self)
        heapq.heappush(self._due, (self._now, next(self._order), handle))
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: object = None
    ):
        handle = asyncio.Handle(callback, args, self)
        heapq.heappush(self._due, (when, next(self._order), handle))
        return handle

    def run_to(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            self._now, _, handle = heapq.heappop(self._due)
            if not handle.cancelled():
                handle._run()
        self._now = now
