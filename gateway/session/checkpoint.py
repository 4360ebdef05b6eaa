"""Write-behind: what is new about sessions in one pipelined commit, every few milliseconds (§4.4).

Text of running streams may wait longer than openings, ends and resumes: sessions that have no other
news take turns, so that one commit carries more tokens of fewer of them.

Only `accepted` waits for a commit. With the store away nothing waits; when it is back, with the same data,
old data or none, the owners write everything that is live again, since their memory is the truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import ref

from gateway.metering.meter import UsageMeter
from gateway.session.presence import StorePresence, StoreState
from gateway.session.turns import Turns
from gateway.session.twice import twice
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

__all__ = ["MARK_CHECK_S", "OWNER_TOLD_S", "WRITES_FAILED_MAX", "Checkpointer"]

log = logging.getLogger("gateway")

T = TypeVar("T")

STORE_RETRY_S = 0.5
# How often the store is asked whether it is still the one that has our data.
MARK_CHECK_S = 1.0
# An owner hears that there is a newer one when it writes: also of a session that has nothing new, within
# `OWNER_TOLD_S` (§4.6), the time between two looks and a slow commit included.
OWNER_TOLD_S = 10.0
RENEW_S = min(OWNER_RENEW_S / 2, OWNER_TOLD_S - 2 * MARK_CHECK_S)
RENEWALS_AT_ONCE_MAX = 256
# How often in a row a write that the store cannot carry out is tried again, whole.
WRITES_FAILED_MAX = 5
NS_PER_MS = 1_000_000


class Checkpointer:
    """Gathers owners with news and commits them together; `run` is its one task."""

    def __init__(
        self,
        store: SessionStore,
        usage: UsageMeter,
        clock: Clock,
        tracing: Tracing,
        interval_s: float,
        text_interval_s: float,
    ) -> None:
        self._presence = StorePresence()
        self.owners: dict[SessionOwner, None] = {}
        self._store = store
        self._usage = usage
        self._clock = clock
        self._tracing = tracing
        self._interval_s = interval_s
        self._dirty: dict[SessionOwner, None] = {}
        self.turns = Turns(max(1, round(text_interval_s / interval_s)))
        self._wake = asyncio.Event()
        self._committing = asyncio.Lock()
        self._mark: str | None = None
        self._mark_at = 0.0
        # In the order of their times, since each waits for as long as any other. Many an owner is gone
        # before its time has come, and is not to be kept by this.
        self._renewals: deque[tuple[float, ref[SessionOwner]]] = deque()

    @property
    def state(self) -> StoreState:
        """Whether the store takes commits; what waits for one waits only while it is `THERE`."""
        return self._presence.state

    def own(self, owner: SessionOwner) -> None:
        """This gateway owns it from now on."""
        self.owners[owner] = None
        self._renewals.append((self._clock.monotonic() + RENEW_S, ref(owner)))

    def disown(self, owner: SessionOwner) -> None:
        """And no longer; what it has to say may still be written."""
        self.owners.pop(owner, None)

    @property
    def bills_waiting(self) -> int:
        """Bills of streams that are not in the store yet, also of sessions that are over."""
        return sum(owner.journal.bills_waiting for owner in self.owners | self._dirty)

    def mark(self, owner: SessionOwner) -> None:
        """The owner may have news; until it is taken, or presses, once is enough."""
        owner.journal.marked = True
        if owner.journal.pressing:
            self._dirty[owner] = None
        else:
            self.turns.add(owner)
        self._wake.set()

    async def run(self) -> None:
        """Commit for ever: at once when the last commit is long enough ago, else on the interval."""
        while True:
            await self.tick()
            await asyncio.sleep(
                STORE_RETRY_S if self.state is StoreState.AWAY else self._interval_s
            )
            if self.state is StoreState.THERE:
                await self._wait_for_news()

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(MARK_CHECK_S):
                await self._wake.wait()
        except TimeoutError:
            return

    async def tick(self) -> None:
        """Write what does not wait, and whose turn it is."""
        async with self._committing:
            await self._commit(self.turns.take())

    async def commit(self) -> None:
        """Write all that is new now; returns when it is in the store, or the store is found away."""
        # One after the other: two on their way at once, over two connections, may arrive the other
        # way round, and token ids are appended as they come.
        async with self._committing:
            await self._commit(self.turns.take_all())

    async def _commit(self, whose_turn: Iterable[SessionOwner]) -> None:
        self._dirty.update(dict.fromkeys(whose_turn))
        if not self.turns:
            self._wake.clear()
        self._renew_if_due()
        await self._usage.save()
        began = self._clock.monotonic()
        try:
            await self._twice(self._meet)
        except StoreUnavailableError:
            await self._usage.save(held=True)
            self._away(self._take())
            return
        writes = self._take()
        if not writes:
            self._there(began)
            return
        started_ms = self._clock.wall_ms()
        try:
            result = await self._twice(partial(self._write, writes), partial(self._renewed, writes))
        except StoreUnavailableError:
            await self._usage.save(held=True)
            self._away(writes)
            return
        self._there(began)
        _trace(self._tracing, writes, started_ms, self._clock.wall_ms())
        for owner, write in writes:
            try:
                self._tell(owner, write, result)
            except Exception as fault:  # noqa: BLE001 - of one session, and stays with it
                self._let_go(owner, fault)

    async def _meet(self) -> None:
        await self._check_mark()
        await self._usage.flush()

    async def _write(self, writes: list[_Write]) -> CommitResult:
        return await self._store.commit([write for _, write in writes], self._usage.gateway)

    def _renewed(self, writes: list[_Write]) -> None:
        """What was taken, whole: nobody knows how much of it the store has."""
        for owner, _ in writes:
            owner.journal.rewrite()
            self._dirty[owner] = None
        writes[:] = self._take()

    async def _twice(
        self, exchange: Callable[[], Awaitable[T]], again: Callable[[], None] = lambda: None
    ) -> T:
        away = self.state is StoreState.AWAY
        return await exchange() if away else await twice(exchange, again, self._clock)

    def _take(self) -> list[_Write]:
        dirty, self._dirty = self._dirty, {}
        taken = []
        for owner in dirty:
            try:
                write = owner.take_write()
            except Exception as fault:  # noqa: BLE001 - of one session, and stays with it
                self._let_go(owner, fault)
                continue
            if write is not None:
                taken.append((owner, write))
        return taken

    def _tell(self, owner: SessionOwner, write: SessionWrite, result: CommitResult) -> None:
        if write.session in result.fenced:
            self._refused(owner, write)
        elif write.session in result.failed:
            self._not_writable(owner)
        elif write.session in result.missing:
            owner.not_stored(write)
        else:
            owner.stored(write)

    def _not_writable(self, owner: SessionOwner) -> None:
        owner.journal.failed()
        if owner.journal.failures > WRITES_FAILED_MAX:
            log.error("session %s cannot be written", owner.identity.session)
            owner.failed()
        else:
            self.mark(owner)

    def _let_go(self, owner: SessionOwner, fault: Exception) -> None:
        """After a fault of one session: the gateway's others are written and go on."""
        log.error("session %s cannot go on here", owner.identity.session, exc_info=fault)
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
        for _ in range(min(len(self._renewals), RENEWALS_AT_ONCE_MAX)):
            if now < self._renewals[0][0]:
                return
            _, referred = self._renewals.popleft()
            owner = referred()
            if owner is None or owner not in self.owners:
                continue
            self._renewals.append((now + RENEW_S, referred))
            # Without a connection its time is running out, and is not to be renewed.
            if owner.carrier is not None:
                owner.journal.renew()
                self._dirty[owner] = None

    def _away(self, writes: list[_Write]) -> None:
        if self._presence.failed():
            self._level(committed=False)
        for owner, write in writes:
            if write.closed:
                self._dirty[owner] = None
                continue
            try:
                owner.not_stored(write)
            except Exception as fault:  # noqa: BLE001 - of one session, and stays with it
                self._let_go(owner, fault)

    def _there(self, began: float) -> None:
        if self._presence.answered(began, self._clock.monotonic()):
            self._level(committed=True)

    def _level(self, *, committed: bool) -> None:
        for owner in list(self.owners):
            try:
                owner.store_level(committed=committed)
            except Exception as fault:  # noqa: BLE001 - of one session, and stays with it
                self._let_go(owner, fault)


def _trace(tracing: Tracing, writes: list[_Write], started_ms: int, ended_ms: int) -> None:
    """A span for each opening that waited for this commit."""
    attributes = {Attribute.DB_SYSTEM: "redis", Attribute.DB_OPERATION: "commit"}
    for owner, write in writes:
        for stream in write.streams:
            if stream.opened is None:
                continue
            machine = owner.machine.streams.live.get(stream.id)
            if machine is None or machine.stored:
                continue
            tracing.record(
                Span.STORE_COMMIT,
                machine.traceparent,
                started_ms * NS_PER_MS,
                ended_ms * NS_PER_MS,
                hop="store",
                kind="client",
                attributes=attributes,
            )
