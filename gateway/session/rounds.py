"""When the text of a gateway's sessions leaves: all of it together, in rounds.

interval 0      a round at the end of each turn of the loop in which text came
interval 4 ms   at once when the last round began that long ago, else when it did; and a round that
                took long leaves the loop twice as long to everything else, up to 20 ms (overload)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mesh.clock import Clock

__all__ = ["INTERVAL_MAX_S", "Rounds"]

INTERVAL_MAX_S = 0.020
# Of a round's time, until the next one: a loop that is full works in larger pieces, which cost less.
REST = 3


class Rounds:
    """Calls `work` once for however often it is asked `soon` before it is called."""

    def __init__(self, work: Callable[[float], None], clock: Clock, interval_s: float) -> None:
        self._work = work
        self._clock = clock
        self._interval_s = interval_s
        self._next_at = 0.0
        self._asked = False

    def soon(self) -> None:
        """There is something to do."""
        if self._asked:
            return
        self._asked = True
        loop = asyncio.get_running_loop()
        wait_s = self._next_at - self._clock.monotonic() if self._interval_s else 0.0
        if wait_s > 0:
            loop.call_later(wait_s, self._round)
        else:
            loop.call_soon(self._round)

    def _round(self) -> None:
        self._asked = False
        began = self._clock.monotonic()
        self._work(began)
        if self._interval_s:
            took_s = self._clock.monotonic() - began
            wait_s = min(max(self._interval_s, REST * took_s), INTERVAL_MAX_S)
            self._next_at = began + wait_s
