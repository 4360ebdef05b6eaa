"""How much less is asked for, and when a client hears of it (§3 `pressure`)."""

from __future__ import annotations

from enum import Enum

from seedance.protocol.frames import PressureFrame

__all__ = ["FREE", "Pressed", "PressureLevel", "PressurePacer", "highest"]

# A level is left at the earliest so long after it was told: a rise waits for nothing, and yet a client
# hears at most three frames in this time.
FALL_AFTER_S = 1.0


class PressureLevel(Enum):
    """How much less is asked for, by an instance or by a session's own window."""

    NONE = "none"
    THROTTLE = "throttle"
    PAUSE = "pause"


_RANK = {PressureLevel.NONE: 0, PressureLevel.THROTTLE: 1, PressureLevel.PAUSE: 2}

Pressed = tuple[PressureLevel, str]
FREE: Pressed = (PressureLevel.NONE, "")


def highest(*pressed: Pressed) -> Pressed:
    """The highest level, with its reason; of equals the first."""
    return max(pressed, key=lambda one: _RANK[one[0]], default=FREE)


class PressurePacer:
    """Knows what holds, and what the client was told of it."""

    def __init__(self) -> None:
        # Nothing is asked for, and the client knows: the usual case, which costs nothing to see.
        self.calm = True
        self._holds = FREE
        self._told = PressureLevel.NONE
        self._told_at = float("-inf")

    def fresh(self) -> None:
        """A new connection was told nothing yet."""
        self.calm = False
        self._told, self._told_at = PressureLevel.NONE, float("-inf")

    def take(self, pressed: Pressed, now: float) -> PressureFrame | None:
        """This is how it is now; the frame that is due: only of another level, a higher one at once."""
        self._holds = pressed
        level, reason = pressed
        self.calm = level is self._told is PressureLevel.NONE
        if level is self._told:
            return None
        if self._falling and now < self._told_at + FALL_AFTER_S:
            return None
        self._told, self._told_at = level, now
        self.calm = level is PressureLevel.NONE
        return PressureFrame(level.value, reason)

    @property
    def _falling(self) -> bool:
        level = self._holds[0]
        return level is not self._told and _RANK[level] < _RANK[self._told]

    @property
    def deadline(self) -> float | None:
        """When to look again; None: nothing is held back."""
        return self._told_at + FALL_AFTER_S if self._falling else None
