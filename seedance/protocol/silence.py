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
    """Asks once after `ask_s` of silence and gives up after `gone_s`.

    A peer whose message is on its way, piece by piece, is silent but not gone: it is asked time and
    again, so that it hears something meanwhile, and given up `gone_s` after the last piece.
    """

    def __init__(self, ask_s: float, gone_s: float, now: float) -> None:
        self._ask_s = ask_s
        self._gone_s = gone_s
        self._heard_at = now
        self._piece_at = now
        self._asked_at: float | None = None

    def heard(self, at: float) -> None:
        """The peer said something then."""
        if at > self._heard_at:
            self._heard_at = at
            self._asked_at = None

    def received(self, at: float) -> None:
        """A piece of something that is not said to its end arrived then."""
        self._piece_at = max(self._piece_at, at)

    @property
    def deadline(self) -> float:
        """When to look again."""
        return self._gone_at if self._asked else min(self._ask_at, self._gone_at)

    def check(self, now: float) -> Verdict:
        """Look now."""
        if now >= self._gone_at:
            return Verdict.GONE
        if not self._asked and now >= self._ask_at:
            self._asked_at = now
            return Verdict.ASK
        return Verdict.FINE

    @property
    def _asked(self) -> bool:
        return self._asked_at is not None and self._piece_at <= self._asked_at

    @property
    def _ask_at(self) -> float:
        return (self._heard_at if self._asked_at is None else self._asked_at) + self._ask_s

    @property
    def _gone_at(self) -> float:
        return max(self._heard_at, self._piece_at) + self._gone_s
