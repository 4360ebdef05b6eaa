"""The ledger: every usage event counts once, for ever; what is no event is kept aside.

SQL runs in the ledger's one thread, so that the event loop never waits for a disk and SQLite never
has two writers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from mesh.clock import Clock
from metering.event import Event, EventRefusedError, parse_entry, parse_event
from metering.store.sql import MinuteSum, ModelSum, RefusedEntry, SqlStore

__all__ = ["Ledger", "LedgerUnavailableError", "Outcome"]

T = TypeVar("T")

REFUSED_PAGE_ENTRIES = 256


class LedgerUnavailableError(Exception):
    """The database does not answer, or refuses to write. Nothing of the batch was recorded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch.

    `told`: the events in it, each once, which the ledger has now; `recorded`: those that were new;
    `duplicates`: tellings of what it had; `refusals`: why the others are kept aside.
    """

    told: tuple[Event, ...] = ()
    recorded: tuple[Event, ...] = ()
    duplicates: int = 0
    refusals: tuple[str, ...] = field(default=())


class Ledger:
    """Records batches of payloads and answers what a tenant used."""

    def __init__(self, store: SqlStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")

    async def record(self, payloads: Sequence[bytes]) -> Outcome:
        """Take a batch of entries in one transaction, committed on return.

        Raises `LedgerUnavailableError`; the batch may then be given again.
        """
        # Reading is work of the ledger's thread, too: a batch may hold thousands of events.
        return await self.run(lambda: self._record(payloads))

    def _record(self, payloads: Sequence[bytes]) -> Outcome:
        events: dict[str, Event] = {}
        refused: dict[str, RefusedEntry] = {}
        refusals: list[str] = []
        told = 0
        for payload in payloads:
            for item in parse_entry(payload):
                if isinstance(item, tuple):
                    line, error = item
                    entry = self._refuse(line, str(error))
                    refused[entry.digest] = entry
                    refusals.append(entry.reason)
                else:
                    told += 1
                    events.setdefault(item.id, item)
        new = self._store.write(tuple(events.values()), tuple(refused.values()))
        recorded = tuple(event for id_, event in events.items() if id_ in new)
        return Outcome(tuple(events.values()), recorded, told - len(recorded), tuple(refusals))

    async def record_events(self, events: Sequence[Event]) -> frozenset[str]:
        """Take events of metering's own, with distinct ids; returns those that were new.

        Raises `LedgerUnavailableError`.
        """
        return await self.run(lambda: self._store.write(events, ()))

    async def usage(
        self,
        tenant: str,
        from_ms: int = 0,
        until_ms: int | None = None,
        key: str = "",
        ended_before_ms: int | None = None,
    ) -> list[ModelSum]:
        """The tenant's sums per model over generations that began in [from, until); see `SqlStore.sums`.

        Raises `LedgerUnavailableError`.
        """
        return await self.run(
            lambda: self._store.sums(tenant, from_ms, until_ms, key, ended_before_ms)
        )

    async def minutes(self, tenant: str, from_ms: int, until_ms: int) -> list[MinuteSum]:
        """The tenant's sums per minute and model over minutes that begin in [from, until).

        Raises `LedgerUnavailableError`.
        """
        return await self.run(lambda: self._store.minutes(tenant, from_ms, until_ms))

    async def take_up_refused(self) -> int:
        """Try again what was kept aside; returns how many entries this release understands.

        Events of a later version wait for the release that knows it. Raises
        `LedgerUnavailableError`.
        """
        return await self.run(self._take_up_refused)

    def _take_up_refused(self) -> int:
        taken = 0
        for page in self._store.refused_pages(REFUSED_PAGE_ENTRIES):
            events: dict[str, Event] = {}
            digests: list[str] = []
            for entry in page:
                try:
                    event = parse_event(entry.payload)
                except EventRefusedError:
                    continue
                events.setdefault(event.id, event)
                digests.append(entry.digest)
            if digests:
                self._store.write(tuple(events.values()), ())
                self._store.drop_refused(digests)
                taken += len(digests)
        return taken

    def close(self) -> None:
        """Let the write in progress end, and close the database."""
        self._thread.shutdown(wait=True)
        self._store.close()

    def _refuse(self, payload: bytes, reason: str) -> RefusedEntry:
        return RefusedEntry(
            hashlib.sha256(payload).hexdigest(), reason, payload, self._clock.wall_ms()
        )

    async def run(self, work: Callable[[], T]) -> T:
        """Do any work on this database, in the ledger's thread.

        Raises `LedgerUnavailableError`.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except SQLAlchemyError as error:
            raise LedgerUnavailableError(type(error).__name__) from error
