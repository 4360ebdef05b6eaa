"""What a gateway measures for bills, and its one meeting a second with metering.

Metering learns of a gateway's death by its lease: a small record in the store, renewed every second,
that says which connections are open. Who finds it no longer renewed ends them, for billing, at the
last renewal (`metering.leases`).
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable

from gateway.metering.connection import ConnectionMeter, MeteredSocket
from gateway.metering.events import ConnectionOpened, RequestMade, written
from gateway.metering.outbox import Outbox
from gateway.metering.spool import Spool
from gateway.store.base import GatewayLease, SessionStore, UsageEvent
from mesh.clock import Clock
from seedance.protocol.errors import ErrorCode

__all__ = ["MEET_S", "USAGE_WAITING_MAX", "UsageMeter"]

USAGE_BATCH_MAX = 500
MEET_S = 1.0
# While so many entries wait in the usage stream, a gateway keeps its events to itself: the store's
# memory is for sessions.
USAGE_WAITING_MAX = 1_000_000


class UsageMeter:
    """Takes what happened without waiting; `save` and `flush` are called at every commit.

    `gateway` is this process's start id: random, so that nothing it names was named before.
    """

    def __init__(self, store: SessionStore, clock: Clock, spool: Spool | None = None) -> None:
        self.gateway = secrets.token_hex(8) if spool is None else spool.gateway
        self.outbox = Outbox(clock, spool)
        self._store = store
        self._clock = clock
        self._live: dict[str, ConnectionMeter] = {}
        self._gone: list[str] = []
        self._numbers = itertools.count(1)
        self._meet_at = 0.0
        self._held = False
        self._whole_lease = True

    def __len__(self) -> int:
        return len(self.outbox)

    @property
    def lost(self) -> int:
        """Events that were given up."""
        return self.outbox.lost

    # ------------------------------------------------------------ what happens

    def add(self, event: UsageEvent) -> None:
        """Report an event."""
        self.outbox.add(event)

    def hold(self, event: UsageEvent) -> None:
        """An event that goes to the store with what it belongs to; `told`, `drop` or `add` follows."""
        self.outbox.hold(event)

    def told(self, events: Iterable[UsageEvent]) -> None:
        """Held events are in the store."""
        self.outbox.sent(events)

    def drop(self, names: Iterable[str]) -> None:
        """Held events are somebody else's to tell."""
        self.outbox.drop(names)

    def connected(self, socket: MeteredSocket, tenant: str, mode: str) -> ConnectionMeter:
        """A WebSocket of a tenant is open; its end is reported when its transport is gone."""
        now_ms = self._clock.wall_ms()
        meter = ConnectionMeter(f"{self.gateway}/{next(self._numbers)}", tenant, now_ms, socket)
        self._live[meter.name] = meter
        opened = ConnectionOpened(tenant, self.gateway, now_ms, mode)
        self.add(written(opened, f"{meter.name}/connection_opened"))
        socket.on_lost = lambda: self._disconnected(meter)
        if socket.lost_at is not None:  # while it was being let in
            self._disconnected(meter)
        return meter

    def _disconnected(self, meter: ConnectionMeter) -> None:
        if self._live.pop(meter.name, None) is not None:
            self.add(meter.closed(self.gateway, self._clock.monotonic()))
            self._gone.append(meter.name)

    def request(
        self, tenant: str, outcome: str = "asked", *, name: str = "", idempotency_id: str = ""
    ) -> None:
        """A request was made; without a `name` it is one of its own, whatever comes after it."""
        name = name or f"{self.gateway}/{next(self._numbers)}/request"
        made = RequestMade(tenant, self.gateway, self._clock.wall_ms(), outcome, idempotency_id)
        self.add(written(made, name))

    def refused(self, tenant: str | None) -> None:
        """Somebody was not let in; it is a request of the tenant whose key was shown (CASES 102)."""
        if tenant is not None:
            self.request(tenant, ErrorCode.UNAUTHORIZED.value)

    # ------------------------------------------------------------ the way to metering

    async def save(self, *, held: bool = False) -> None:
        """Put new events into the spool; with the store away (`held`) also those that were held."""
        await self.outbox.save(held=held)

    async def flush(self) -> None:
        """Tell the store what it was not told. Raises `StoreUnavailableError`; nothing is lost then."""
        while not self._held and (batch := self.outbox.unsent(USAGE_BATCH_MAX)):
            await self._store.add_usage(batch)
            self.outbox.sent(batch)
        if self._clock.monotonic() >= self._meet_at:
            await self._meet()

    async def _meet(self) -> None:
        """Renew the lease and hear what the ledger has."""
        lease = self._lease()
        try:
            marks = await self._store.meet_metering(lease)
        except BaseException:
            self._whole_lease = True
            self._gone += lease.gone
            raise
        self._meet_at = self._clock.monotonic() + MEET_S
        self._whole_lease = marks.lease_was_gone
        self._held = marks.waiting >= USAGE_WAITING_MAX
        self.outbox.committed(marks.committed)
        if marks.complete:
            self.outbox.look_for_missing(marks.oldest_waiting_s)

    def _lease(self) -> GatewayLease:
        whole, gone = self._whole_lease, tuple(self._gone)
        self._gone.clear()
        records = {}
        for name, meter in self._live.items():
            record = meter.news() or (meter.record() if whole else None)
            if record is not None:
                records[name] = record
        now_ms = round(self._clock.monotonic() * 1000)
        return GatewayLease(self.gateway, now_ms, records, gone, tuple(self.outbox.heir_of))

    async def take_up(self) -> None:
        """Report what gateways that died on this spool have left."""
        await self.outbox.take_up()

    async def close(self) -> None:
        """The process ends: what metering has not said to have stays in the spool."""
        await self.outbox.close()
