"""A canary as the whole mesh sees it: its state, and what is counted of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

__all__ = [
    "BUCKETS",
    "SHARE_MAX",
    "STEPS_PER_OCTAVE",
    "CanaryPhase",
    "CanaryState",
    "Counts",
    "Tally",
    "step_ends_s",
]

# A share is told in hundredths of a percent.
SHARE_MAX = 10_000
# First-token times in steps of an eighth of an octave, from a millisecond to a minute.
BUCKETS = 128
STEPS_PER_OCTAVE = 8
_SHORTEST_S = 0.001


def step_ends_s(step: int) -> float:
    """The longest first-token time of a step, in seconds."""
    return float(_SHORTEST_S * 2 ** ((step + 1) / STEPS_PER_OCTAVE))


class CanaryPhase(Enum):
    """What becomes of canary instances."""

    IDLE = "idle"  # only who asks for one gets one
    RUNNING = "running"  # so does a share of the keys
    ROLLED_BACK = "rolled_back"  # nobody does, not even who asks


@dataclass(frozen=True, slots=True)
class CanaryState:
    """What all gateways go by. `revision` rises with every change, over any router's life.

    `share` of keys in hundredths of a percent; `reason` says why it was rolled back.
    """

    revision: int = 0
    phase: CanaryPhase = CanaryPhase.IDLE
    share: int = 0
    reason: str = ""


@dataclass(slots=True)
class Tally:
    """What was seen of one group: requests that ended, those that failed, and their first tokens."""

    ended: int = 0
    failed: int = 0
    first_tokens: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def first_token(self, seconds: float) -> None:
        """One request's first token came after so long."""
        steps = STEPS_PER_OCTAVE * math.log2(max(seconds, _SHORTEST_S) / _SHORTEST_S)
        self.first_tokens[min(int(steps), BUCKETS - 1)] += 1

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        """All of them together."""
        total = cls()
        for tally in tallies:
            total.ended += tally.ended
            total.failed += tally.failed
            counts = zip(total.first_tokens, tally.first_tokens, strict=True)
            total.first_tokens = [one + other for one, other in counts]
        return total


@dataclass(frozen=True, slots=True)
class Counts:
    """What has been seen of both groups."""

    canary: Tally = field(default_factory=Tally)
    stable: Tally = field(default_factory=Tally)
