"""The connections of gateways that died: ended, for billing, at the gateway's last renewal.

A lease whose beat has not changed for `LEASE_LOST_S`, by this process's clock, is a dead gateway's.
Any number of processes may look at once: the events have the ids that the gateway itself would have
given them, and the ledger takes each once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec
from redis.exceptions import RedisError

from mesh.clock import Clock
from mesh.store import BEAT_FIELD, GATEWAYS_KEY, lease_key
from mesh.store_link import open_link
from metering.event import RTT_SAMPLES_MAX, ConnectionClosed, Count, Event, Moment, Name
from metering.ledger import Ledger, LedgerUnavailableError

__all__ = ["LEASE_LOST_S", "LOOK_S", "LeaseKeeper"]

# Ten renewals; a gateway that was frozen for so long is taken for dead, and the rest of its
# connections' time is free.
LEASE_LOST_S = 10.0
LOOK_S = 1.0

_LOG = logging.getLogger("metering")


class _Open(msgspec.Struct, frozen=True):
    """A connection as its gateway's lease has it (`mesh.store.lease_key`)."""

    tenant: Name
    opened_ms: Moment
    opened_at_ms: int
    bytes_in: Count
    bytes_out: Count
    rtt_us: tuple[Count, ...]

    def ended(self, gateway: str, name: str, beat_ms: int) -> ConnectionClosed:
        """The event of its end at a beat."""
        return ConnectionClosed(
            v=1,
            id=f"{name}/connection_closed",
            tenant=self.tenant,
            gateway=gateway,
            opened_ms=self.opened_ms,
            established_ms=max(0, beat_ms - self.opened_at_ms),
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            rtt_us=self.rtt_us[-RTT_SAMPLES_MAX:],
        )


_DECODER = msgspec.json.Decoder(_Open)


class LeaseKeeper:
    """Looks after all gateways' leases, for as long as `run` runs."""

    def __init__(self, redis_url: str, ledger: Ledger, clock: Clock) -> None:
        self._link = open_link(redis_url)
        self._ledger = ledger
        self._clock = clock
        # Per gateway: its beat, and since when it has not changed.
        self._beats: dict[str, tuple[bytes | None, float]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Look every second until `stop`. Store or ledger away: nobody is taken for dead meanwhile."""
        while not stop.is_set():
            try:
                await self.look()
            except (RedisError, OSError, LedgerUnavailableError) as error:
                # The consumer says so in the log. Gateways could not renew either.
                _LOG.debug("leases cannot be read: %s", type(error).__name__)
                self._beats.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await stop.wait()

    async def close(self) -> None:
        """Give the connection back."""
        await self._link.close()

    async def look(self) -> None:
        """End the connections of gateways that are dead by now."""
        (names,) = await self._link.ask([("SMEMBERS", GATEWAYS_KEY)])
        gateways = [name.decode() for name in names]
        beats = await self._link.ask([("HGET", lease_key(g), BEAT_FIELD) for g in gateways])
        now = self._clock.monotonic()
        known = self._beats
        self._beats = {}
        for gateway, beat in zip(gateways, beats, strict=True):
            before = known.get(gateway)
            since = before[1] if before is not None and before[0] == beat else now
            self._beats[gateway] = (beat, since)
            if now - since >= LEASE_LOST_S:
                await self._end(gateway)

    async def _end(self, gateway: str) -> None:
        key = lease_key(gateway)
        (found,) = await self._link.ask([("HGETALL", key)])
        fields: dict[bytes, bytes] = dict(zip(found[::2], found[1::2], strict=True))
        beat_ms = int(fields.pop(BEAT_FIELD.encode(), b"0"))
        ended: list[Event] = []
        for name, record in fields.items():
            try:
                ended.append(_DECODER.decode(record).ended(gateway, name.decode(), beat_ms))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                _LOG.warning("a record in the lease of gateway %s cannot be read", gateway)
        if ended:
            new = await self._ledger.record_events(ended)
            _LOG.warning(
                "gateway %s is gone: %d of its connections are ended at its last beat",
                gateway,
                len(new),
            )
        await self._link.ask([("DEL", key), ("SREM", GATEWAYS_KEY, gateway)])
        self._beats.pop(gateway, None)
