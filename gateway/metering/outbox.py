"""Usage events between their making and metering's word that the ledger has them.

    add, hold ──► unsent ──sent──► waiting ──committed──► gone
                    ▲                 │
                    └─────missing─────┘

An event is missing when it was told, is not in the ledger, and everything that waits in the usage
stream was told later: the store has lost it. It is told again; the ledger takes each id once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gateway.metering.spool import Spool, SpoolFullError
from gateway.store.base import UsageEvent
from mesh.clock import Clock

__all__ = ["MISSING_AFTER_S", "SYNC_S", "USAGE_KEPT_MAX", "Outbox"]

log = logging.getLogger("gateway")

# With metering away for long, memory is bounded by this; the oldest events are given up, loudly.
USAGE_KEPT_MAX = 100_000
# How much later than an event the oldest waiting entry must be for the event to be missing: well
# beyond what a command and two clocks' rates can be apart.
MISSING_AFTER_S = 5.0
# The spool is on the disk as of this long ago.
SYNC_S = 1.0


@dataclass(slots=True)
class _Kept:
    event: UsageEvent
    spooled: bool = False
    segment: int | None = None
    sent_at: float | None = None


class Outbox:
    """Keeps events; without a `spool` in memory only."""

    def __init__(self, clock: Clock, spool: Spool | None = None) -> None:
        self.lost = 0
        # Gateways whose events were taken up: theirs are the names that metering marks.
        self.heir_of: set[str] = set()
        self._clock = clock
        self._spool = spool
        self._kept: dict[str, _Kept] = {}
        self._unsent: dict[str, _Kept] = {}
        self._held: dict[str, _Kept] = {}
        self._unsaved: list[_Kept] = []
        self._settled: list[int] = []
        self._left: list[Path] = []
        self._synced_at = 0.0
        self._spooling = True

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, event: UsageEvent) -> None:
        """Keep an event until metering has it. Never waits, never fails."""
        kept = self._keep(event)
        kept.sent_at = None
        self._held.pop(event.id, None)
        self._unsent[event.id] = kept
        self._spool_later(kept)

    def hold(self, event: UsageEvent) -> None:
        """Keep an event that is told together with what it belongs to: `sent`, `drop` or `add` follows.

        It is not in the spool unless the store is away: whose part it is of may have a new owner,
        and this gateway may be killed before it has told it.
        """
        self._held[event.id] = self._keep(event)

    def _keep(self, event: UsageEvent) -> _Kept:
        kept = self._kept.get(event.id)
        if kept is None:
            self._make_room()
            kept = self._kept[event.id] = _Kept(event)
        kept.event = event
        return kept

    def drop(self, names: Iterable[str]) -> None:
        """Somebody else tells these."""
        self.committed(names)

    def _spool_later(self, kept: _Kept) -> None:
        if self._spool is not None and not kept.spooled:
            kept.spooled = True
            self._unsaved.append(kept)

    def _make_room(self) -> None:
        if len(self._kept) < USAGE_KEPT_MAX:
            return
        kept = self._forget(next(iter(self._kept)))
        # What is on the disk is told by whoever starts next on that folder.
        if kept is not None and kept.segment is None and kept.sent_at is None:
            self.lost += 1
            log.error("a usage event is lost: the store has been away for too long")

    # ------------------------------------------------------------ the spool

    async def take_up(self) -> None:
        """Keep what gateways that are gone have left in the spool; what is too much stays there."""
        if self._spool is None:
            return
        for path, events in await asyncio.to_thread(lambda s: list(s.left_behind()), self._spool):
            if len(self._kept) + len(events) > USAGE_KEPT_MAX:
                log.warning("the spool holds more events than fit: the next start takes them up")
                break
            log.warning("%d usage events of a gateway that is gone are taken up", len(events))
            for event in events:
                self.add(event)
                self.heir_of.add(json.loads(event.payload)["gateway"])
            self._left.append(path)
        await self.save()

    async def save(self, *, held: bool = False) -> None:
        """Write to the spool what is new, before it is told to anybody; `held`: also what is held."""
        if self._spool is None:
            return
        if held:
            for kept in self._held.values():
                self._spool_later(kept)
        now = self._clock.monotonic()
        sync = now >= self._synced_at + SYNC_S
        if self._unsaved or self._settled or sync:
            unsaved, self._unsaved = self._unsaved, []
            settled, self._settled = self._settled, []
            left, self._left = self._left, []
            self._synced_at = now if sync else self._synced_at
            await asyncio.to_thread(self._save, self._spool, unsaved, settled, left, sync)

    def _save(
        self, spool: Spool, unsaved: list[_Kept], settled: list[int], left: list[Path], sync: bool
    ) -> None:
        for number in settled:
            spool.settle(number)
        try:
            if unsaved:
                number = spool.append([kept.event for kept in unsaved])
                for kept in unsaved:
                    kept.segment = number
            self._spooling = True
        except SpoolFullError:
            if self._spooling:
                log.error("the usage spool takes no more: new events are in memory only")  # noqa: TRY400
            self._spooling = False
            return
        if sync or left:
            spool.sync()
        for path in left:
            spool.forget(path)

    async def close(self) -> None:
        """What is not in the ledger stays in the spool."""
        await self.save()
        if self._spool is not None:
            await asyncio.to_thread(self._spool.close)

    # ------------------------------------------------------------ the store

    def unsent(self, limit: int) -> list[UsageEvent]:
        """The oldest events that the store was not told."""
        return [kept.event for kept, _ in zip(self._unsent.values(), range(limit), strict=False)]

    def sent(self, events: Iterable[UsageEvent]) -> None:
        """The usage stream has them."""
        now = self._clock.monotonic()
        for event in events:
            kept = self._forget(event.id)
            if kept is not None:
                kept.sent_at = now
                # In the order of their sending, so that `look_for_missing` looks at the oldest only.
                self._kept[event.id] = kept
                self._spool_later(kept)

    def committed(self, names: Iterable[str]) -> None:
        """The ledger has them."""
        for name in names:
            kept = self._forget(name)
            if kept is not None and kept.segment is not None:
                self._settled.append(kept.segment)
        if not self._kept:
            self.heir_of.clear()

    def _forget(self, name: str) -> _Kept | None:
        self._unsent.pop(name, None)
        self._held.pop(name, None)
        return self._kept.pop(name, None)

    def look_for_missing(self, oldest_waiting_s: float) -> int:
        """Tell again what the store has lost; the oldest entry that waits there is so old."""
        told_before = self._clock.monotonic() - oldest_waiting_s - MISSING_AFTER_S
        missing: dict[str, _Kept] = {}
        for name, kept in self._kept.items():
            if kept.sent_at is None:
                continue
            if kept.sent_at >= told_before:
                break
            missing[name] = kept
        for name, kept in missing.items():
            kept.sent_at = None
            self._unsent[name] = kept
        if missing:
            log.warning("the store has lost %d usage events: told again", len(missing))
        return len(missing)
