"""Whether the session store takes commits (§4.4): gone at once, back when it has been steady for a while.

    THERE ──failed──► AWAY ──answered──► STEADYING ──steady──► THERE
                       ▲                     │
                       └───────failed────────┘

A store that answers late, or now and then, would else be away and back by turns, and tell every client
so each time. While it steadies everything is committed, but nothing waits for it and `ack_level` stays
`memory`; a late answer begins that anew. "Failed" is what `gateway.session.twice` could not mend: an
exchange that was cut off twice, or not answered within a command's time limit.
"""

from __future__ import annotations

import logging
from enum import Enum

__all__ = ["STEADY_ANSWERS", "STEADY_S", "STEADY_WITHIN_S", "StorePresence", "StoreState"]

log = logging.getLogger("gateway")

# A store is back after so many answers in a row, over so long, each within so long. It is less than the
# store's word is doubted for after its return (§4.8).
STEADY_ANSWERS = 10
STEADY_S = 2.0
STEADY_WITHIN_S = 0.5


class StoreState(Enum):
    """Whether the store takes commits."""

    THERE = "there"
    AWAY = "away"
    STEADYING = "steadying"


class _Heard(Enum):
    """What an exchange, or several of them, told of the store."""

    FAILED = "failed"
    ANSWERED = "answered"
    STEADY = "steady"


_NEXT = {
    (StoreState.THERE, _Heard.FAILED): StoreState.AWAY,
    (StoreState.AWAY, _Heard.ANSWERED): StoreState.STEADYING,
    (StoreState.STEADYING, _Heard.FAILED): StoreState.AWAY,
    (StoreState.STEADYING, _Heard.STEADY): StoreState.THERE,
}


class StorePresence:
    """Told how exchanges with the store went; times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self.state = StoreState.THERE
        # While it steadies: when that began, and the answers since then.
        self._since = 0.0
        self._answers = 0

    def failed(self) -> bool:
        """The store could not be reached; whether it was relied on until now."""
        relied_on = self.state is StoreState.THERE
        self._move(_Heard.FAILED)
        if relied_on:
            log.warning("the session store is away: sessions go on from memory")
        return relied_on

    def answered(self, began: float, now: float) -> bool:
        """All that was new is written; whether the store is relied on from now on, again."""
        if self.state is StoreState.AWAY:
            self._move(_Heard.ANSWERED)
            self._begin(now)
        elif self.state is StoreState.STEADYING:
            if now - began > STEADY_WITHIN_S:
                self._begin(now)
                return False
            self._answers += 1
            if self._answers >= STEADY_ANSWERS and now - self._since >= STEADY_S:
                self._move(_Heard.STEADY)
                log.warning("the session store is back: everything live was written again")
                return True
        return False

    def _begin(self, now: float) -> None:
        self._since, self._answers = now, 0

    def _move(self, heard: _Heard) -> None:
        self.state = _NEXT.get((self.state, heard), self.state)
