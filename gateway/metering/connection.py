"""One WebSocket as metering sees it: how long it is open, what goes over it, how far away it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from gateway.metering.events import ConnectionClosed, written
from gateway.store.base import UsageEvent

__all__ = ["RTT_SAMPLES_MAX", "ConnectionMeter", "MeteredSocket"]

# The bill goes by the average of the last ten (docs/billing.md).
RTT_SAMPLES_MAX = 10
_MS = 1000


class MeteredSocket(Protocol):
    """What is measured of a WebSocket (`gateway.ws_protocol`); moments are monotonic seconds."""

    opened_at: float
    ended_at: float | None
    lost_at: float | None
    bytes_in: int
    bytes_out: int
    on_lost: Callable[[], None]

    def round_trip_us(self) -> int | None:
        """The transport's round trip now; None: this system does not tell."""
        ...


class ConnectionMeter:
    """Measures one connection from its upgrade until its transport is gone.

    `name` is its identity, (gateway start id, connection); `opened_ms` the wall clock's moment.
    """

    def __init__(self, name: str, tenant: str, opened_ms: int, socket: MeteredSocket) -> None:
        self.name = name
        self.tenant = tenant
        self._opened_ms = opened_ms
        self._socket = socket
        self._rtt_us: deque[int] = deque(maxlen=RTT_SAMPLES_MAX)
        self._told_bytes = -1
        self.sample()

    def sample(self) -> None:
        """Measure the round trip."""
        rtt_us = self._socket.round_trip_us()
        if rtt_us is not None:
            self._rtt_us.append(rtt_us)

    def news(self) -> bytes | None:
        """What a lease says of it (`mesh.store.lease_key`), when there was traffic since the last time."""
        told = self._socket.bytes_in + self._socket.bytes_out
        if told == self._told_bytes:
            return None
        self._told_bytes = told
        self.sample()
        return self.record()

    def record(self) -> bytes:
        """What a lease says of it now, so that somebody else can end it."""
        socket = self._socket
        return msgspec.json.encode(
            {
                "tenant": self.tenant,
                "opened_ms": self._opened_ms,
                "opened_at_ms": round(socket.opened_at * _MS),
                "bytes_in": socket.bytes_in,
                "bytes_out": socket.bytes_out,
                "rtt_us": list(self._rtt_us),
            }
        )

    def closed(self, gateway: str, now: float) -> UsageEvent:
        """The event of its end: ESTABLISHED until the peer's FIN, CLOSE_WAIT until ours."""
        socket = self._socket
        lost_at = now if socket.lost_at is None else socket.lost_at
        ended_at = lost_at if socket.ended_at is None else socket.ended_at
        opened_ms, ended_ms, lost_ms = (
            round(t * _MS) for t in (socket.opened_at, ended_at, lost_at)
        )
        event = ConnectionClosed(
            tenant=self.tenant,
            gateway=gateway,
            opened_ms=self._opened_ms,
            established_ms=ended_ms - opened_ms,
            close_wait_ms=lost_ms - ended_ms,
            bytes_in=socket.bytes_in,
            bytes_out=socket.bytes_out,
            rtt_us=tuple(self._rtt_us),
        )
        return written(event, f"{self.name}/connection_closed")
