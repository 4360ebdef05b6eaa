"""The WebSockets that are open now, and how a process that ends parts from them (§3 `goaway`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gateway.addresses import AddressLimit
from seedance.protocol.errors import CloseCode

if TYPE_CHECKING:
    from gateway.websocket import Connection

__all__ = ["Connections"]

# Clients spread their reconnects over this.
RECONNECT_MS = 500
# What a client that was told to go has before it is closed, beyond the time to reconnect.
LEAVE_S = 1.0
POLL_S = 0.05


class Connections:
    """At most `limit` at once, `per_address` of one client's address; none new once the process drains."""

    def __init__(self, limit: int, per_address: int = 0) -> None:
        self.draining = False
        self._limit = limit
        self._addresses = AddressLimit(per_address)
        self._open: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admits(self, address: str) -> bool:
        """Whether one more may open from this address."""
        room = not self.draining and len(self._open) < self._limit
        return room and self._addresses.admits(address)

    @contextmanager
    def holding(self, connection: Connection, address: str) -> Iterator[None]:
        """Count a connection while it is open."""
        self._open[connection] = None
        self._addresses.enter(address)
        try:
            yield
        finally:
            self._open.pop(connection, None)
            self._addresses.leave(address)

    async def drain(self, grace_s: float) -> None:
        """Ask all to go, let simple clients' streams finish, then close what is left with 1001."""
        self.draining = True
        for connection in self._open:
            connection.go_away("the gateway is shutting down", RECONNECT_MS)
        loop = asyncio.get_running_loop()
        leave_at = loop.time() + min(grace_s, RECONNECT_MS / 1000 + LEAVE_S)
        end_at = loop.time() + grace_s
        while self._open and loop.time() < end_at:
            for connection in list(self._open):
                if not connection.busy and (loop.time() >= leave_at or connection.at_rest):
                    connection.close(CloseCode.GOING_AWAY, "the gateway is shutting down")
            await asyncio.sleep(POLL_S)
        for connection in list(self._open):
            connection.close(CloseCode.GOING_AWAY, "the gateway is shutting down")
