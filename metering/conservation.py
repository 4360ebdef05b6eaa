"""No token is lost or made up between engine, gateway, client and bill.

    computed = framed + discarded         the instance's own count against the gateway's two
    framed   = acknowledged + retained    what the client has against what is still kept for it

Each stream is looked at when it enters the ledger, and each day in the ledger as it stands: what is
billed are the framed tokens, so the ledger's sums are the engines' counts less what was discarded. A
difference is an alert: a line in the log that names the stream or the day, and a metric.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from collections.abc import Iterable

from sqlalchemy.exc import SQLAlchemyError

from mesh.clock import Clock
from mesh.telemetry.metrics import MeteringMetrics
from metering.event import Event, UsageEvent
from metering.store.books import DAY_MS, BookStore, DayBooks

__all__ = ["Conservation", "difference_of"]

LOOK_EVERY_S = 600.0
# A look after the first one goes so far back; late events come within it.
DAYS_BACK = 3
# Streams named in the log for one batch or day; the metric counts all.
NAMED_MAX = 20

_LOG = logging.getLogger("metering")


def difference_of(stream: UsageEvent) -> str | None:
    """Which books of a stream differ, and by how much; None: they agree, as far as they were told."""
    framed = stream.completion_tokens
    made, discarded = stream.computed_tokens, stream.discarded_tokens
    if made is not None and discarded is not None and made != framed + discarded:
        return f"computed {made}, framed {framed}, discarded {discarded}"
    acknowledged, retained = stream.acknowledged_tokens, stream.retained_tokens
    told = acknowledged is not None and retained is not None
    if told and framed != acknowledged + retained:  # type: ignore[operator] # both are told
        return f"framed {framed}, acknowledged {acknowledged}, retained {retained}"
    return None


class Conservation:
    """Looks at streams as they come (`check`) and at days from time to time (`run`)."""

    def __init__(self, store: BookStore, clock: Clock, metrics: MeteringMetrics) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics

    def check(self, recorded: Iterable[Event]) -> int:
        """Look at streams that are new in the ledger; returns how many have a difference."""
        different = untold = equal = 0
        for event in recorded:
            if not isinstance(event, UsageEvent):
                continue
            difference = difference_of(event)
            if difference is not None:
                different += 1
                if different <= NAMED_MAX:
                    _LOG.error("tokens are not conserved in stream %s: %s", event.id, difference)
            elif event.computed_tokens is None:
                untold += 1
            else:
                equal += 1
        for verdict, count in (("different", different), ("untold", untold), ("equal", equal)):
            self._metrics.conserved.labels(verdict).inc(count)
        return different

    async def run(self, stop: asyncio.Event) -> None:
        """Look at all days, and then at the last ones, until `stop`."""
        since_ms = 0
        while not stop.is_set():
            # An outage is the ledger's to tell.
            with contextlib.suppress(SQLAlchemyError):
                # A connection of its own, beside the ledger's writer.
                self.judge(await asyncio.to_thread(self._store.days, since_ms))
                since_ms = self._clock.wall_ms() // DAY_MS * DAY_MS - DAYS_BACK * DAY_MS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await stop.wait()

    def judge(self, days: Iterable[DayBooks]) -> int:
        """Compare the sums of each day; returns how many days differ."""
        different = 0
        for day in days:
            if day.balanced:
                continue
            different += 1
            named = ", ".join(self._store.different_streams(day.day_ms, NAMED_MAX))
            _LOG.error("tokens are not conserved on %s: %s; streams %s", _date(day), day, named)
        self._metrics.different_days.set(different)
        return different


def _date(day: DayBooks) -> str:
    moment = dt.datetime.fromtimestamp(day.day_ms / 1000, dt.UTC)
    return moment.date().isoformat()
