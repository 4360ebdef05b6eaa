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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from starlette.datastructures import Headers, QueryParams

from gateway.signed_tokens import TokenTimeError
from gateway.store.base import StoreUnavailableError
from gateway.tenants.model import NO_TENANTS, ApiKey, TenantBook
from gateway.tenants.origins import ANY_ORIGIN, allowed_origins, is_allowed
from gateway.tenants.reader import TENANT_NAME
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

# RFC 6750 §2.1, with any visible ASCII in the key; the scheme's name has no case (RFC 9110 §11.1).
_BEARER = re.compile(r"bearer +([!-~]+)", re.IGNORECASE | re.ASCII)
_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
# Where people put a key in a URL; there it ends up in logs (CASES 108).
_QUERY_KEY_NAMES = frozenset({"token", "key", "api_key", "apikey", "access_token", "authorization"})
# Whose signed token a text is, if it is one (`gateway.signed_tokens.verify`).
VerifyToken = Callable[[str], Principal | None]


class Refusal(Enum):
    """Why somebody may not connect."""

    BAD_ORIGIN = "bad_origin"
    BAD_AUTHORIZATION = "bad_authorization"
    BAD_AUTHORIZATION_TIME = "bad_authorization_time"
    UNAUTHORIZED = "unauthorized"
    UNAUTHORIZED_TIME = "unauthorized_time"
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


_WRONG_TIME = "clock_skew: the token is over or not valid yet by more than 30 s; compare the clocks"

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
    # Only who holds a rightly signed token gets to hear these two.
    Refusal.BAD_AUTHORIZATION_TIME: RefusalRow(401, None, ErrorCode.UNAUTHORIZED, _WRONG_TIME),
    Refusal.UNAUTHORIZED_TIME: RefusalRow(
        401, CloseCode.UNAUTHORIZED, ErrorCode.UNAUTHORIZED, _WRONG_TIME
    ),
    Refusal.UNAVAILABLE: RefusalRow(
        503,
        CloseCode.TRY_AGAIN_LATER,
        ErrorCode.UNAVAILABLE,
        "tickets cannot be checked at the moment",
    ),
}


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """The keys of a comma list `tenant:sha256hex`; a tenant may have several (rotation).

    Raises `ValueError` naming the entry by its position, never by its content.
    """
    keys = []
    for number, entry in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        tenant, _, digest = entry.partition(":")
        if not TENANT_NAME.fullmatch(tenant) or not _SHA256_HEX.fullmatch(digest):
            raise ValueError(
                f"entry {number} must be `tenant:sha256hex`, the hex SHA-256 of the tenant's key"
            )
        keys.append(ApiKey(tenant, bytes.fromhex(digest)))
    return tuple(keys)


class Authenticator:
    """Decides who a request comes from.

    `anonymous_tenant` is the tenant of whoever shows nothing; None: nobody is anonymous. It never
    applies to somebody who shows a wrong key. Programs that insist on sending a key, such as
    OpenAI's clients, may send the anonymous tenant's name. `book` gives the tenants of the file as
    it is now, `verify` knows signed tokens.
    """

    def __init__(
        self,
        keys: Sequence[ApiKey],
        origins: frozenset[str],
        tickets: Tickets,
        *,
        anonymous_tenant: str | None = None,
        book: Callable[[], TenantBook] = lambda: NO_TENANTS,
        verify: VerifyToken = lambda _: None,
    ) -> None:
        self._keys = tuple(keys)
        if anonymous_tenant is not None:
            digest = hashlib.sha256(anonymous_tenant.encode()).digest()
            self._keys += (ApiKey(anonymous_tenant, digest, "anonymous"),)
        self._origins = origins
        self.tickets = tickets
        self._anonymous = Principal(anonymous_tenant) if anonymous_tenant is not None else None
        self._book = book
        self._verify = verify

    async def connect(
        self, headers: Headers, query: QueryParams, subprotocols: Sequence[str] = ()
    ) -> Principal | Refusal:
        """Who opens a WebSocket; `subprotocols` as the client offered them."""
        decided = self._from_headers(headers, query)
        if decided is None:
            items = [item for item in subprotocols if item.startswith(AUTH_ITEM)]
            if items:
                decided = self._from_subprotocols(items, subprotocols)
            elif "ticket" in query:
                decided = await self._from_ticket(query["ticket"])
        return self._at_home(decided, headers)

    def request(self, headers: Headers, query: QueryParams) -> Principal | Refusal:
        """Who sends an HTTP request: the Origin rule and the bearer key, as on a WebSocket."""
        return self._at_home(self._from_headers(headers, query), headers)

    def tenant_shown(self, headers: Headers, subprotocols: Sequence[str] = ()) -> str | None:
        """The tenant whose key is shown, also by somebody who was refused: the bill's business only."""
        bearers = [_BEARER.fullmatch(shown) for shown in headers.getlist("authorization")]
        items = [item for item in subprotocols if item.startswith(AUTH_ITEM)]
        for key in (*(m[1] for m in bearers if m), *map(_key_of_item, items)):
            try:
                who = self._who(key) if key else None
            except TokenTimeError:
                continue
            if who is not None:
                return who.tenant
        return None

    def _from_headers(self, headers: Headers, query: QueryParams) -> Principal | Refusal | None:
        """What Origin, query and Authorization decide; None: they leave it open."""
        if not all(self._is_known(origin) for origin in headers.getlist("origin")):
            return Refusal.BAD_ORIGIN
        shown: Principal | None = None
        authorization = headers.getlist("authorization")
        if authorization:
            match = _BEARER.fullmatch(authorization[0]) if len(authorization) == 1 else None
            try:
                shown = self._who(match[1]) if match else None
            except TokenTimeError:
                return Refusal.BAD_AUTHORIZATION_TIME
            if shown is None:
                return Refusal.BAD_AUTHORIZATION
        if _shows_key(query):  # a right key in the header does not excuse one in the URL
            return Refusal.UNAUTHORIZED
        return shown

    def _is_known(self, origin: str) -> bool:
        """Whether anybody at all may come from there: who it is, is not known yet."""
        return is_allowed(origin, self._origins) or any(
            is_allowed(origin, tenant.origins) for tenant in self._book().tenants.values()
        )

    def _at_home(
        self, decided: Principal | Refusal | None, headers: Headers
    ) -> Principal | Refusal:
        """The principal, if its own tenant may come from where it comes from."""
        who = decided or self._anonymous or Refusal.UNAUTHORIZED
        if isinstance(who, Refusal):
            return who
        allowed = self._book().tenant(who.tenant).origins or self._origins
        at_home = all(is_allowed(origin, allowed) for origin in headers.getlist("origin"))
        return who if at_home else Refusal.BAD_ORIGIN

    def _who(self, shown: str) -> Principal | None:
        """Whose key or token it is. Raises `TokenTimeError`."""
        digest = hashlib.sha256(shown.encode(errors="surrogatepass")).digest()
        found = None
        for known in (*self._keys, *self._book().keys):
            # No early way out: the time must not name the key.
            if hmac.compare_digest(known.digest, digest):
                found = known
        return self._verify(shown) if found is None else Principal(found.tenant, key=found.label)

    def _from_subprotocols(
        self, items: Sequence[str], subprotocols: Sequence[str]
    ) -> Principal | Refusal:
        # The item is never echoed back, so without another one the browser would fail the socket.
        beside = any(item.startswith(VERSION_ITEM) for item in subprotocols)
        key = _key_of_item(items[0]) if len(items) == 1 and beside else None
        try:
            return (self._who(key) if key else None) or Refusal.UNAUTHORIZED
        except TokenTimeError:
            return Refusal.UNAUTHORIZED_TIME

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
