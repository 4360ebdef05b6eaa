"""Write-behind: every session's news in one pipelined commit, every few milliseconds (§4.4).

Only `accepted` waits for it. With the store away nothing waits; when it is back, with the same data,
old data or none, the owners write everything that is live again, since their memory is the truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from gateway.metering.meter import UsageMeter
from gateway.store.base import (
    OWNER_RENEW_S,
    CommitResult,
    SessionStore,
    SessionWrite,
    StoreUnavailableError,
)
from mesh.clock import Clock
from mesh.telemetry.names import Attribute, Span
from mesh.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from gateway.session.owner import SessionOwner

    _Write = tuple[SessionOwner, SessionWrite]

__all__ = ["Checkpointer", "StoreState"]

log = logging.getLogger("gateway")

STORE_RETRY_S = 0.5
# How often the store is asked whether it is still the one that has our data.
MARK_CHECK_S = 1.0
RENEW_S = OWNER_RENEW_S / 2
NS_PER_MS = 1_000_000


class StoreState(Enum):
    """Whether the store takes commits."""

    THERE = "there"
    AWAY = "away"


class Checkpointer:
    """Gathers owners with news and commits them together; `run` is its one task."""

    def __init__(
        self,
        store: SessionStore,
        usage: UsageMeter,
        clock: Clock,
        tracing: Tracing,
        interval_s: float,
    ) -> None:
        self.state = StoreState.THERE
        self.owners: dict[SessionOwner, None] = {}
        self._store = store
        self._usage = usage
        self._clock = clock
        self._tracing = tracing
        self._interval_s = interval_s
        self._dirty: dict[SessionOwner, None] = {}
        self._wake = asyncio.Event()
        self._committing = asyncio.Lock()
        self._mark: str | None = None
        self._mark_at = 0.0
        self._renew_at = 0.0

    def mark(self, owner: SessionOwner) -> None:
        """The owner may have news."""
        self._dirty[owner] = None
        self._wake.set()

    async def run(self) -> None:
        """Commit for ever: at once when the last commit is long enough ago, else on the interval."""
        self._renew_at = self._clock.monotonic() + RENEW_S
        while True:
            await self.commit()
            await asyncio.sleep(
                self._interval_s if self.state is StoreState.THERE else STORE_RETRY_S
            )
            if self.state is StoreState.THERE:
                await self._wait_for_news()

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(MARK_CHECK_S):
                await self._wake.wait()
        except TimeoutError:
            return

    async def commit(self) -> None:
        """Write all that is new now; returns when it is in the store, or the store is found away."""
        # One after the other: two on their way at once, over two connections, may arrive the other
        # way round, and token ids are appended as they come.
        async with self._committing:
            await self._commit()

    async def _commit(self) -> None:
        self._wake.clear()
        self._renew_if_due()
        await self._usage.save()
        try:
            await self._check_mark()
            await self._usage.flush()
        except StoreUnavailableError:
            self._away(self._take())
            return
        writes = self._take()
        if not writes:
            self._there()
            return
        started_ms = self._clock.wall_ms()
        try:
            result = await self._store.commit([write for _, write in writes])
        except StoreUnavailableError:
            self._away(writes)
            return
        self._there()
        self._trace(writes, started_ms)
        for owner, write in writes:
            with self._alone(owner):
                self._tell(owner, write, result)

    def _take(self) -> list[_Write]:
        dirty, self._dirty = self._dirty, {}
        taken = []
        for owner in dirty:
            with self._alone(owner):
                write = owner.take_write()
                if write is not None:
                    taken.append((owner, write))
        return taken

    def _tell(self, owner: SessionOwner, write: SessionWrite, result: CommitResult) -> None:
        if write.session in result.fenced:
            self._refused(owner, write)
        elif write.session in result.missing:
            owner.not_stored(write)
        else:
            owner.stored(write)

    @contextmanager
    def _alone(self, owner: SessionOwner) -> Iterator[None]:
        """A fault of one session stays with it: the gateway's others are written and go on."""
        try:
            yield
        except Exception:
            log.exception("session %s cannot go on here", owner.identity.session)
            owner.failed()

    def _refused(self, owner: SessionOwner, write: SessionWrite) -> None:
        if write.epoch < owner.epoch:
            # Overtaken by a resume on this very gateway, which has raised the epoch meanwhile.
            owner.not_stored(write)
            self.mark(owner)
        else:
            log.info("session %s has a newer owner", write.session)
            owner.fenced()

    async def _check_mark(self) -> None:
        now = self._clock.monotonic()
        if self.state is StoreState.THERE and now < self._mark_at + MARK_CHECK_S:
            return
        mark = await self._store.generation_mark()
        self._mark_at = now
        if self.state is StoreState.AWAY or (self._mark is not None and mark != self._mark):
            self._rewrite_all()
        self._mark = mark

    def _rewrite_all(self) -> None:
        for owner in self.owners:
            owner.journal.rewrite()
            self._dirty[owner] = None

    def _renew_if_due(self) -> None:
        now = self._clock.monotonic()
        if now < self._renew_at:
            return
        self._renew_at = now + RENEW_S
        for owner in self.owners:
            # Without a connection its time is running out, and is not to be renewed.
            if owner.carrier is not None:
                owner.journal.renew()
                self._dirty[owner] = None

    def _away(self, writes: list[_Write]) -> None:
        if self.state is StoreState.THERE:
            self.state = StoreState.AWAY
            log.warning("the session store is away: sessions go on from memory")
            self._level(committed=False)
        for owner, write in writes:
            with self._alone(owner):
                if write.closed:
                    self._dirty[owner] = None
                else:
                    owner.not_stored(write)

    def _there(self) -> None:
        if self.state is StoreState.AWAY:
            self.state = StoreState.THERE
            log.warning("the session store is back: everything live is written again")
            self._level(committed=True)

    def _level(self, *, committed: bool) -> None:
        for owner in list(self.owners):
            with self._alone(owner):
                owner.store_level(committed=committed)

    def _trace(self, writes: list[_Write], started_ms: int) -> None:
        ended_ns = self._clock.wall_ms() * NS_PER_MS
        attributes = {Attribute.DB_SYSTEM: "redis", Attribute.DB_OPERATION: "commit"}
        for owner, write in writes:
            for stream in write.streams:
                machine = owner.machine.streams.live.get(stream.id)
                if stream.opened is None or machine is None or machine.stored:
                    continue
                self._tracing.record(
                    Span.STORE_COMMIT,
                    machine.traceparent,
                    started_ms * NS_PER_MS,
                    ended_ns,
                    hop="store",
                    kind="client",
                    attributes=attributes,
                )
