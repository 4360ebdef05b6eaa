"""Single-use connection tickets (contract §1): what a browser shows instead of a key.

A ticket opens one WebSocket within 30 s. The store has only its SHA-256, so that whoever reads the
store cannot connect with what is there.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import asdict, dataclass, field

import msgspec

from gateway.store.base import SessionStore

__all__ = ["TICKET_TTL_S", "Principal", "Tickets"]

TICKET_TTL_S = 30.0
TICKET_BYTES = 32
# Longest text that is looked up; ours have 43 characters.
TICKET_LENGTH_MAX = 128


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is connected: the tenant that pays, and the user within it where one is known.

    `key` is the label of the API key that was shown; empty: none was. It says how somebody came
    in, not who it is.
    """

    tenant: str
    user: str | None = None
    key: str = field(default="", compare=False)


class Tickets:
    """Issues tickets into the session store and takes each back once, within `ttl_s` seconds."""

    def __init__(self, store: SessionStore, ttl_s: float = TICKET_TTL_S) -> None:
        self.ttl_s = ttl_s
        self._store = store

    async def issue(self, principal: Principal) -> str:
        """A new ticket for the principal. Raises `StoreUnavailableError`."""
        ticket = secrets.token_urlsafe(TICKET_BYTES)
        value = msgspec.json.encode(asdict(principal))
        await self._store.put_ticket(_stored_name(ticket), value, self.ttl_s)
        return ticket

    async def redeem(self, ticket: str) -> Principal | None:
        """Whose ticket this is; None: unknown, used or expired. Raises `StoreUnavailableError`."""
        if not ticket.isascii() or len(ticket) > TICKET_LENGTH_MAX:
            return None
        value = await self._store.take_ticket(_stored_name(ticket))
        return None if value is None else msgspec.json.decode(value, type=Principal)


def _stored_name(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
