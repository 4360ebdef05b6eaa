"""Whether what a session store says about sessions is to be believed (§4.8).

A store that is back holds what it held when it went, or less; owners write their sessions anew
within `SETTLE_S`, and until then neither a session that it has nor one that it lacks is the truth.
And one that it lacks may be too young: its first commit, or the next try of it, is on its way.
"""

from __future__ import annotations

from gateway.store.base import StoreUnavailableError
from gateway.store.names import made_ms
from mesh.clock import Clock

__all__ = ["SETTLE_S", "YOUNG_S", "StoreBelief"]

SETTLE_S = 5.0
# Within this time of its making a session has been committed, also when the first answer was lost:
# a command's time limit, the wait before the next try, and that try. It is as much as two gateways'
# ideas of the store's clock may differ, so a time that far ahead is as young.
YOUNG_S = 5.0
_MS = 1000


class StoreBelief:
    """Told how exchanges with the store went; `settle_s` is how long a store that is back is doubted."""

    def __init__(self, clock: Clock, settle_s: float = SETTLE_S) -> None:
        self.away = False
        self._clock = clock
        self._settle_s = settle_s
        self._marks: dict[int, str] = {}
        self._believed_from = clock.monotonic()
        self._ahead_ms: int | None = None

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

    def marked(self, mark: str, partition: int = 0, *, fresh: bool) -> None:
        """The mark of a partition's server and data; `fresh`: it had none, hence no data."""
        if fresh or self._marks.get(partition, mark) != mark:
            self._doubt()
        self._marks[partition] = mark

    def told_time(self, now_ms: int) -> None:
        """What the store's clock says now, in Unix milliseconds."""
        self._ahead_ms = now_ms - self._monotonic_ms()

    def now_ms(self) -> int:
        """The store's clock; this host's, as long as the store was never heard."""
        if self._ahead_ms is None:
            return self._clock.wall_ms()
        return self._monotonic_ms() + self._ahead_ms

    def check(self) -> None:
        """Raise `StoreUnavailableError` while the store is back for too short a time."""
        if self._clock.monotonic() < self._believed_from:
            raise StoreUnavailableError("the store is back for too short a time")

    def check_lacking(self, session: str) -> None:
        """Raise `StoreUnavailableError` while it means nothing that the store lacks this session."""
        self.check()
        made = made_ms(session)
        if made is not None and abs(self.now_ms() - made) < YOUNG_S * _MS:
            raise StoreUnavailableError("the session is too young to be known to be gone")

    def _doubt(self) -> None:
        self._believed_from = self._clock.monotonic() + self._settle_s

    def _monotonic_ms(self) -> int:
        return round(self._clock.monotonic() * _MS)
