"""How long each stage of a step takes, and a word when computing waits for the others too often."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

__all__ = ["StageClock", "StepTimes"]

# So long may the runner stand idle before each of so many steps in a row; then it is said, and not
# again for a while.
FETCH_WAIT_MAX_S = 0.015
SLOW_IN_A_ROW = 3
QUIET_S = 60.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class StepTimes:
    """Instants of one step, in seconds of the engine's clock.

        free ··· begun ──fetch── fetched ··· computing ──compute── computed ··· ──absorb── absorbed

    `free`: since when the runner could have computed this step: the end of the last one, or `begun`
    when there was nothing to do in between. `openings` came in with this step.
    """

    free: float
    begun: float
    fetched: float
    openings: int = 0
    computing: float = 0.0
    computed: float = 0.0
    absorbed: float = 0.0

    @property
    def fetch_wait_s(self) -> float:
        """How long the runner stood idle before the step, though there was work."""
        return self.computing - self.free

    def spans(self) -> dict[str, tuple[float, float]]:
        """When each stage began and ended, and the wait."""
        return {
            "fetch_wait": (self.free, self.computing),
            "fetch": (self.begun, self.fetched),
            "compute": (self.computing, self.computed),
            "absorb": (self.computed, self.absorbed),
        }

    def remedy(self) -> str:
        """The flag that shortens the wait before this step."""
        # Of what a step costs outside the model, planning is about a fifth.
        if self.fetched - self.begun > self.fetch_wait_s / 8:
            return "--max-batch-size: planning for so many streams takes that long"
        if self.openings:
            return "--intake-threads: tokenizing takes the interpreter from the engine"
        return "--threads: computing leaves no core to the rest of this process"


class StageClock:
    """Steps, and the seconds spent in each stage since the start, for whoever scrapes them."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = dict.fromkeys(("fetch_wait", "fetch", "compute", "absorb", "emit"), 0.0)
        self._slow = 0
        self._quiet_until = -math.inf

    def add(self, step: StepTimes) -> None:
        """A step has been absorbed."""
        self.steps += 1
        for stage, (begin, end) in step.spans().items():
            self.seconds[stage] += end - begin
        self._slow = self._slow + 1 if step.fetch_wait_s > FETCH_WAIT_MAX_S else 0
        if self._slow >= SLOW_IN_A_ROW and step.absorbed >= self._quiet_until:
            self._quiet_until = step.absorbed + QUIET_S
            text = (
                "the model waited %.1f ms for its next step, the %dth long wait in a row; lower %s"
            )
            _log.warning(text, step.fetch_wait_s * 1e3, self._slow, step.remedy())
