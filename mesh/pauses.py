"""How long a process's event loop stands still: by whatever holds it, or by the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import math
from collections import deque

from mesh.clock import Clock

__all__ = ["PauseMeter"]

TICK_S = 0.1
# A minute's ticks are judged, once there are twenty seconds of them: a p99 is then at least the
# third-longest pause, never a single one.
SAMPLES_MAX = 600
SAMPLES_MIN = 200


class PauseMeter:
    """Takes a sample at each tick while `run` runs: how late the tick came.

    Or the longest collection since the one before, which need not have delayed it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples_s: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._collecting_since = 0.0
        self._collection_s = 0.0

    @property
    def p99_ms(self) -> float:
        """The p99 in milliseconds; 0: there are too few samples to say."""
        samples = sorted(self._samples_s)
        if len(samples) < SAMPLES_MIN:
            return 0.0
        return 1e3 * samples[math.ceil(0.99 * len(samples)) - 1]

    async def run(self) -> None:
        """Measure until cancelled."""
        gc.callbacks.append(self._on_collection)
        try:
            while True:
                due = self._clock.monotonic() + TICK_S
                await asyncio.sleep(TICK_S)
                self.sample(self._clock.monotonic() - due)
        finally:
            gc.callbacks.remove(self._on_collection)

    def sample(self, late_s: float) -> None:
        """A tick came so late."""
        self._samples_s.append(max(late_s, self._collection_s, 0.0))
        self._collection_s = 0.0

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        now = self._clock.monotonic()
        if phase == "start":
            self._collecting_since = now
        else:
            self._collection_s = max(self._collection_s, now - self._collecting_since)
