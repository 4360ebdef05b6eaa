"""Whether what a session store says about sessions is to be believed (§4.8).

A store that is back holds what it held when it went, or less; owners write their sessions anew
within `SETTLE_S`, and until then neither a session that it has nor one that it lacks is the truth.
"""

from __future__ import annotations

from gateway.store.base import StoreUnavailableError
from mesh.clock import Clock

__all__ = ["SETTLE_S", "StoreBelief"]

SETTLE_S = 5.0


class StoreBelief:
    """Told how exchanges with the store went; `settle_s` is how long a store that is back is doubted."""

    def __init__(self, clock: Clock, settle_s: float = SETTLE_S) -> None:
        self.away = False
        self._clock = clock
        self._settle_s = settle_s
        self._mark = ""
        self._believed_from = clock.monotonic()

    def failed(self) -> bool:
        """An exchange failed; whether that is news."""
        news, self.away = not self.away, True
        return news

    def answered(self) -> bool:
        """The store answered; whether that is news."""
        news, self.away = self.away, False
        if news:
            self._doubt()
        return news

    def marked(self, mark: str, *, fresh: bool) -> None:
        """The store's generation mark; `fresh`: it had none, hence no data."""
        if fresh or self._mark not in ("", mark):
            self._doubt()
        self._mark = mark

    def check(self) -> None:
        """Raise `StoreUnavailableError` while the store is back for too short a time."""
        if self._clock.monotonic() < self._believed_from:
            raise StoreUnavailableError("the store is back for too short a time")

    def _doubt(self) -> None:
        self._believed_from = self._clock.monotonic() + self._settle_s
