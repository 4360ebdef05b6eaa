"""Whose a session is, and how it is written down and read again."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass

from gateway.store.names import new_session_id

__all__ = ["SessionIdentity", "hash_of", "new_identity", "read_identity"]

_TOKEN_BYTES = 32


def hash_of(token: str, tenant: str) -> str:
    """What the store keeps of a resume token, in hex: no other tenant's token has it."""
    return hashlib.sha256(f"{tenant}\0{token}".encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class SessionIdentity:
    """A session's constant part. `user` is what routing goes by; `windowed` how it began.

    `key`: which of the tenant's keys was shown, for budgets; empty: none, or one without a name.
    `canary`: it asked for canary instances.
    """

    session: str
    token_hash: str
    tenant: str
    user: str
    mode: str
    instance_class: str
    windowed: bool
    key: str = ""
    canary: bool = False

    def created(self) -> bytes:
        """Its JSON for the store."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "session"}
        return json.dumps({"v": 1, **fields}, separators=(",", ":")).encode()


def new_identity(
    tenant: str,
    user: str,
    mode: str,
    instance_class: str,
    *,
    windowed: bool,
    now_ms: int,
    key: str = "",
    canary: bool = False,
) -> tuple[SessionIdentity, str]:
    """A new session, and its resume token, which only the client keeps. `now_ms` is the store's clock."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    session = new_session_id(now_ms)
    identity = SessionIdentity(
        session, hash_of(token, tenant), tenant, user, mode, instance_class, windowed, key, canary
    )
    return identity, token


def read_identity(session: str, created: bytes) -> SessionIdentity:
    """The identity that `created` wrote."""
    fields = json.loads(created)
    return SessionIdentity(
        session,
        **{name: fields[name] for name in SessionIdentity.__slots__ if name in fields},
    )
