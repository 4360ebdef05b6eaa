"""What keeps a caller without a name on one instance: a signed token in a cookie (docs/protocol.md, §8).

It is made from where the caller comes from and what it says it is. A browser that comes back by
another network still has it, and so goes where its prompts are cached. It grants nothing: it is one
number among others to choose an instance by.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from gateway.tickets import Principal

__all__ = ["AFFINITY_COOKIE", "Affinity", "AffinityTokens", "asks_canary"]

AFFINITY_COOKIE = "seedance_affinity"
CANARY_HEADER = "X-Canary"
COOKIE_AGE_S = 30 * 24 * 3600
_PART_BYTES = 12
_PART_LENGTH = 4 * _PART_BYTES // 3


def asks_canary(headers: Headers) -> bool:
    """Whether a request, or a WebSocket's upgrade, asks for the version being tried (§6)."""
    return headers.get(CANARY_HEADER, "").lower() == "true"


@dataclass(frozen=True, slots=True)
class Affinity:
    """What routing goes by, and the cookie that the answer sets; empty: it has a right one."""

    user: str
    set_cookie: str = ""


class AffinityTokens:
    """Makes and reads the tokens; gateways with one `secret` read each other's.

    Without a secret each believes its own alone. From one address and agent they all make the same
    name in any case.
    """

    def __init__(self, secret: str = "") -> None:
        self._naming_key = secret.encode()
        self._signing_key = secret.encode() or secrets.token_bytes(32)

    def of(self, caller: HTTPConnection, principal: Principal, user: str | None = None) -> Affinity:
        """By whom the router's rule goes for this caller.

        An authenticated user is its own affinity, then comes the `user` that a request names,
        then the token that the caller brings, then one that is made.
        """
        tenant, user = principal.tenant, principal.user or user
        if user:
            return Affinity(f"{tenant}/{user}")
        shown = caller.cookies.get(AFFINITY_COOKIE, "")
        name = self._read(tenant, shown)
        if name:
            return Affinity(f"{tenant}~{name}")
        name = self._name(tenant, caller)
        made = name + self._signature(tenant, name)
        secure = "; Secure" if caller.url.scheme in ("https", "wss") else ""
        cookie = f"{AFFINITY_COOKIE}={made}; Path=/; Max-Age={COOKIE_AGE_S}; HttpOnly; SameSite=Lax"
        return Affinity(f"{tenant}~{name}", cookie + secure)

    def _name(self, tenant: str, caller: HTTPConnection) -> str:
        address = caller.client.host if caller.client else ""
        agent = caller.headers.get("user-agent", "")
        return _digest(self._naming_key, "name", tenant, address, agent)

    def _signature(self, tenant: str, name: str) -> str:
        return _digest(self._signing_key, "signature", tenant, name)

    def _read(self, tenant: str, token: str) -> str:
        """The name in a token; empty: there is none, it is none of ours, or another tenant's."""
        if not token:
            return ""
        name = token[:_PART_LENGTH]
        right = name + self._signature(tenant, name)
        return name if token.isascii() and hmac.compare_digest(right, token) else ""


def _digest(key: bytes, *parts: str) -> str:
    message = "\0".join(parts).encode(errors="surrogatepass")
    digest = hmac.digest(key, b"affinity\0" + message, hashlib.sha256)
    return base64.urlsafe_b64encode(digest[:_PART_BYTES]).decode()
