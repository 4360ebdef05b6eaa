"""A layer's timer: how long a peer may be silent before it is asked, and before it is given up (§2)."""

from __future__ import annotations

from enum import Enum

__all__ = ["Silence", "Verdict"]


class Verdict(Enum):
    """What the silence asks for."""

    FINE = "fine"
    ASK = "ask"
    GONE = "gone"


class Silence:
    """Asks once after `ask_s` of silence and gives up after `gone_s`."""

    def __init__(self, ask_s: float, gone_s: float, now: float) -> None:
        self._ask_s = ask_s
        self._gone_s = gone_s
        self._heard_at = now
        self._asked = False

    def heard(self, at: float) -> None:
        """The peer said something then."""
        if at > self._heard_at:
            self._heard_at = at
            self._asked = False

    @property
    def deadline(self) -> float:
        """When to look again."""
        return self._heard_at + (self._gone_s if self._asked else self._ask_s)

    def check(self, now: float) -> Verdict:
        """Look now."""
        if now >= self._heard_at + self._gone_s:
            return Verdict.GONE
        if not self._asked and now >= self._heard_at + self._ask_s:
            self._asked = True
            return Verdict.ASK
        return Verdict.FINE
