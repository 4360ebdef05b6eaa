"""Who may connect (contract §1).

`Authenticator` answers with a `Principal` or a `Refusal`, and raises nothing: what a refusal looks
like on a WebSocket and on HTTP is a row of `REFUSALS`. Keys are known only by their SHA-256; a
shown key is hashed and compared with all of them in constant time, so that neither a hit nor the
length of a common prefix can be told from the time of the answer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

from starlette.datastructures import Headers, QueryParams

from gateway.store.base import StoreUnavailableError
from gateway.tickets import Principal, Tickets
from seedance.protocol.errors import CloseCode, ErrorCode

__all__ = [
    "ANY_ORIGIN",
    "AUTH_ITEM",
    "REFUSALS",
    "ApiKey",
    "Authenticator",
    "Principal",
    "Refusal",
    "RefusalRow",
    "allowed_origins",
    "parse_keys",
]

AUTH_ITEM = "seedance.auth."
VERSION_ITEM = "seedance.v2."
ANY_ORIGIN = "*"

# RFC 6750 §2.1, with any visible ASCII in the key; the scheme's name has no case (RFC 9110 §11.1).
_BEARER = re.compile(r"bearer +([!-~]+)", re.IGNORECASE | re.ASCII)
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
# Where people put a key in a URL; there it ends up in logs (CASES 108).
_QUERY_KEY_NAMES = frozenset({"token", "key", "api_key", "apikey", "access_token", "authorization"})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HTTP_OF_WS = {"ws": "http", "wss": "https"}
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

Origin = tuple[str, str, int]


class Refusal(Enum):
    """Why somebody may not connect."""

    BAD_ORIGIN = "bad_origin"
    BAD_AUTHORIZATION = "bad_authorization"
    UNAUTHORIZED = "unauthorized"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """How a refusal looks.

    `http_status` answers an HTTP request, and a WebSocket upgrade where `close_code` is None;
    otherwise the socket is accepted and closed, so that a browser can tell.
    """

    http_status: int
    close_code: CloseCode | None
    error_code: ErrorCode
    message: str


REFUSALS: dict[Refusal, RefusalRow] = {
    Refusal.BAD_ORIGIN: RefusalRow(
        403, None, ErrorCode.UNAUTHORIZED, "this Origin may not use the gateway"
    ),
    Refusal.BAD_AUTHORIZATION: RefusalRow(
        401, None, ErrorCode.UNAUTHORIZED, "Authorization must be `Bearer KEY` with a valid key"
    ),
    Refusal.UNAUTHORIZED: RefusalRow(
        401,
        CloseCode.UNAUTHORIZED,
        ErrorCode.UNAUTHORIZED,
        "show a valid key in the Authorization header, or a ticket; never a key in the URL",
    ),
    Refusal.UNAVAILABLE: RefusalRow(
        503,
        CloseCode.TRY_AGAIN_LATER,
        ErrorCode.UNAVAILABLE,
        "tickets cannot be checked at the moment",
    ),
}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A tenant's key, known by its SHA-256 (32 bytes)."""

    tenant: str
    digest: bytes


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """The keys of a comma list `tenant:sha256hex`; a tenant may have several (rotation).

    Raises `ValueError` naming the entry by its position, never by its content.
    """
    keys = []
    for number, entry in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        tenant, _, digest = entry.partition(":")
        if not _TENANT.fullmatch(tenant) or not _SHA256_HEX.fullmatch(digest):
            raise ValueError(
                f"entry {number} must be `tenant:sha256hex`, the hex SHA-256 of the tenant's key"
            )
        keys.append(ApiKey(tenant, bytes.fromhex(digest)))
    return tuple(keys)


def _origin(url: str) -> Origin | None:
    """(scheme, host, port) of an origin or a WebSocket base URL; None: it is not one."""
    try:
        parts = urlsplit(url)
        scheme = _HTTP_OF_WS.get(parts.scheme, parts.scheme)
        port = parts.port or _DEFAULT_PORTS[scheme]
    except (ValueError, KeyError):
        return None
    if not parts.hostname or parts.username is not None:
        return None
    return scheme, parts.hostname.lower(), port


def allowed_origins(gateways: Iterable[str], extra: Iterable[str] = ()) -> frozenset[str]:
    """The allow-list of `Origin` values: the pages of all gateways, and what is configured besides.

    `gateways` are public WebSocket base URLs, `extra` origins such as `https://app.example.com` or
    `*` for any. The loopback names stand for each other: a page opened as `http://localhost:8080`
    belongs to the gateway `ws://127.0.0.1:8080`. Raises `ValueError` for what is no origin.
    """
    found = set()
    for url in (*gateways, *extra):
        if url == ANY_ORIGIN:
            found.add(ANY_ORIGIN)
            continue
        origin = _origin(url)
        if origin is None:
            raise ValueError(f"{url!r} must be an origin such as https://app.example.com")
        scheme, host, port = origin
        for name in _LOOPBACK_NAMES if host in _LOOPBACK_NAMES else (host,):
            found.add(_spelled((scheme, name, port)))
    return frozenset(found)


def _spelled(origin: Origin) -> str:
    scheme, host, port = origin
    return f"{scheme}://{host}:{port}"


class Authenticator:
    """Decides who a request comes from.

    `anonymous_tenant` is the tenant of whoever shows nothing; None: nobody is anonymous. It never
    applies to somebody who shows a wrong key. Programs that insist on sending a key, such as
    OpenAI's clients, may send the anonymous tenant's name.
    """

    def __init__(
        self,
        keys: Sequence[ApiKey],
        origins: frozenset[str],
        tickets: Tickets,
        *,
        anonymous_tenant: str | None = None,
    ) -> None:
        self._keys = tuple(keys)
        if anonymous_tenant is not None:
            digest = hashlib.sha256(anonymous_tenant.encode()).digest()
            self._keys += (ApiKey(anonymous_tenant, digest),)
        self._origins = origins
        self.tickets = tickets
        self._anonymous = Principal(anonymous_tenant) if anonymous_tenant is not None else None

    async def connect(
        self, headers: Headers, query: QueryParams, subprotocols: Sequence[str] = ()
    ) -> Principal | Refusal:
        """Who opens a WebSocket; `subprotocols` as the client offered them."""
        decided = self._from_headers(headers, query)
        if decided is not None:
            return decided
        items = [item for item in subprotocols if item.startswith(AUTH_ITEM)]
        if items:
            return self._from_subprotocols(items, subprotocols)
        if "ticket" in query:
            return await self._from_ticket(query["ticket"])
        return self._anonymous or Refusal.UNAUTHORIZED

    def request(self, headers: Headers, query: QueryParams) -> Principal | Refusal:
        """Who sends an HTTP request: the Origin rule and the bearer key, as on a WebSocket."""
        decided = self._from_headers(headers, query)
        if decided is not None:
            return decided
        return self._anonymous or Refusal.UNAUTHORIZED

    def tenant_shown(self, headers: Headers, subprotocols: Sequence[str] = ()) -> str | None:
        """The tenant whose key is shown, also by somebody who was refused: the bill's business only."""
        for shown in headers.getlist("authorization"):
            match = _BEARER.fullmatch(shown)
            if match:
                return self._tenant_of(match[1])
        items = [item for item in subprotocols if item.startswith(AUTH_ITEM)]
        key = _key_of_item(items[0]) if items else None
        return self._tenant_of(key) if key else None

    def _from_headers(self, headers: Headers, query: QueryParams) -> Principal | Refusal | None:
        """What Origin, query and Authorization decide; None: they leave it open."""
        origins = headers.getlist("origin")
        if origins and not all(self._origin_allowed(origin) for origin in origins):
            return Refusal.BAD_ORIGIN
        tenant = None
        authorization = headers.getlist("authorization")
        if authorization:
            match = _BEARER.fullmatch(authorization[0]) if len(authorization) == 1 else None
            tenant = self._tenant_of(match[1]) if match else None
            if tenant is None:
                return Refusal.BAD_AUTHORIZATION
        if _shows_key(query):  # a right key in the header does not excuse one in the URL
            return Refusal.UNAUTHORIZED
        return None if tenant is None else Principal(tenant)

    def _origin_allowed(self, text: str) -> bool:
        if ANY_ORIGIN in self._origins:
            return True
        origin = _origin(text)
        return origin is not None and _spelled(origin) in self._origins

    def _tenant_of(self, key: str) -> str | None:
        digest = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
        tenant = None
        for known in self._keys:  # no early way out: the time must not name the key
            if hmac.compare_digest(known.digest, digest):
                tenant = known.tenant
        return tenant

    def _from_subprotocols(
        self, items: Sequence[str], subprotocols: Sequence[str]
    ) -> Principal | Refusal:
        # The item is never echoed back, so without another one the browser would fail the socket.
        beside = any(item.startswith(VERSION_ITEM) for item in subprotocols)
        key = _key_of_item(items[0]) if len(items) == 1 and beside else None
        tenant = self._tenant_of(key) if key else None
        return Refusal.UNAUTHORIZED if tenant is None else Principal(tenant)

    async def _from_ticket(self, ticket: str) -> Principal | Refusal:
        try:
            return await self.tickets.redeem(ticket) or Refusal.UNAUTHORIZED
        except StoreUnavailableError:
            return Refusal.UNAVAILABLE


def _shows_key(query: QueryParams) -> bool:
    return any(name.lower() in _QUERY_KEY_NAMES for name in query)


def _key_of_item(item: str) -> str | None:
    encoded = item.removeprefix(AUTH_ITEM)
    padding = "=" * (-len(encoded) % 4)
    try:
        return base64.b64decode(encoded + padding, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None
