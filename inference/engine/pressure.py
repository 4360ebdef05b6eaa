"""When the engine asks its callers for less."""

from __future__ import annotations

from inference.engine.messages import Pressure, PressureLevel

__all__ = ["PressureGauge"]

THROTTLE_QUEUE_SHARE = 0.5
THROTTLE_FREE_SHARE = 0.10
PAUSE_FREE_SHARE = 0.02
# A level is left only well below the mark that set it, so that it does not flap.
LEAVE_SHARE = 0.75

_ORDER = (PressureLevel.NONE, PressureLevel.THROTTLE, PressureLevel.PAUSE)


class PressureGauge:
    """Turns queue depth and free blocks into a level; says only when it changes."""

    def __init__(self, queue_max: int, total_blocks: int) -> None:
        self.level = PressureLevel.NONE
        self._queue_max = queue_max
        self._total_blocks = total_blocks

    def update(self, queue_depth: int, free_blocks: int) -> Pressure | None:
        """The new pressure when the level has changed, else None.

        Few free blocks matter only while somebody waits for them: a full batch is a good batch.
        """
        level, reason = self._judge(queue_depth, free_blocks, 1.0)
        if _ORDER.index(level) < _ORDER.index(self.level):
            level, reason = self._judge(queue_depth, free_blocks, LEAVE_SHARE)
        if level is self.level:
            return None
        self.level = level
        return Pressure(level, reason, queue_depth, free_blocks)

    def _judge(self, queue_depth: int, free_blocks: int, share: float) -> tuple[PressureLevel, str]:
        free = free_blocks / self._total_blocks
        scarce = queue_depth > 0
        if queue_depth >= self._queue_max * share:
            return PressureLevel.PAUSE, "the queue is full"
        if scarce and free * share < PAUSE_FREE_SHARE:
            return PressureLevel.PAUSE, "no KV blocks are free"
        if queue_depth >= self._queue_max * THROTTLE_QUEUE_SHARE * share:
            return PressureLevel.THROTTLE, "the queue is half full"
        if scarce and free * share < THROTTLE_FREE_SHARE:
            return PressureLevel.THROTTLE, "few KV blocks are free"
        return PressureLevel.NONE, ""
