"""Who may connect: the contract's §1 as a table."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any, cast

import pytest
from starlette.datastructures import Headers, QueryParams

from gateway.auth import (
    REFUSALS,
    Authenticator,
    Principal,
    Refusal,
    allowed_origins,
    parse_keys,
)
from gateway.signed_tokens import TokenTimeError
from gateway.store.base import SessionStore, StoreUnavailableError
from gateway.tenants.model import ApiKey, Tenant, TenantBook
from gateway.tickets import Tickets

KEY = "sk-right"
OTHER_KEY = "sk-other+/=~"
ACME = Principal("acme")
GATEWAYS = ("ws://127.0.0.1:8080", "wss://chat.example.com")
VERSION = "seedance.v2.json"


class TicketStore:
    """The part of the store that tickets use; `away` makes it unreachable."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.ttl_s: list[float] = []
        self.away = False

    async def put_ticket(self, ticket: str, value: bytes, ttl_s: float) -> None:
        self.kept[ticket] = value
        self.ttl_s.append(ttl_s)

    async def take_ticket(self, ticket: str) -> bytes | None:
        if self.away:
            raise StoreUnavailableError
        return self.kept.pop(ticket, None)


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def auth_item(key: str) -> str:
    return "seedance.auth." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


@pytest.fixture
def store() -> TicketStore:
    return TicketStore()


def authenticator(store: TicketStore, anonymous: str | None = None) -> Authenticator:
    return Authenticator(
        parse_keys(f"acme:{sha256(KEY)}, globex:{sha256(OTHER_KEY)}"),
        allowed_origins(GATEWAYS, ["https://app.example.org"]),
        Tickets(cast("SessionStore", store)),
        anonymous_tenant=anonymous,
    )


async def connect(
    auth: Authenticator, *, query: str = "", offered: Any = (), **headers: str
) -> Any:
    return await auth.connect(Headers(headers), QueryParams(query), offered)


@pytest.mark.parametrize(
    "value",
    ["", " ", "Bearer", "Bearer ", "Bearer  ", "bearer x y", "Basic c2s6", "Bearer\tx", "Bearer é"],
)
@pytest.mark.parametrize("anonymous", [None, "local"])
async def test_malformed_authorization_is_401(
    store: TicketStore, value: str, anonymous: str | None
) -> None:
    """CASES 25: a malformed Authorization is HTTP 401, also where anonymous is allowed."""
    refusal = await connect(authenticator(store, anonymous), authorization=value)
    assert refusal is Refusal.BAD_AUTHORIZATION
    assert (REFUSALS[refusal].http_status, REFUSALS[refusal].close_code) == (401, None)


async def test_the_anonymous_tenants_name_is_its_key(store: TicketStore) -> None:
    """Programs that insist on a key send the name; without an anonymous tenant it is worth nothing."""
    value = "Bearer local"
    welcome = await connect(authenticator(store, "local"), authorization=value)
    assert welcome == Principal("local")
    refused = await connect(authenticator(store, None), authorization=value)
    assert isinstance(refused, Refusal)


@pytest.mark.parametrize("anonymous", [None, "local"])
async def test_wrong_key_is_never_anonymous(store: TicketStore, anonymous: str | None) -> None:
    """A wrong key is refused wherever it is shown, also where anonymous is allowed."""
    auth = authenticator(store, anonymous)
    assert await connect(auth, authorization="Bearer sk-wrong") is Refusal.BAD_AUTHORIZATION
    offered = (VERSION, auth_item("sk-wrong"))
    assert await connect(auth, offered=offered) is Refusal.UNAUTHORIZED
    assert await connect(auth, query="ticket=nobodys") is Refusal.UNAUTHORIZED
    assert REFUSALS[Refusal.UNAUTHORIZED].close_code == 4401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
@pytest.mark.parametrize(("key", "tenant"), [(KEY, "acme"), (OTHER_KEY, "globex")])
async def test_bearer_key_names_the_tenant(
    store: TicketStore, scheme: str, key: str, tenant: str
) -> None:
    """A right bearer key is its tenant; the scheme's name has no case."""
    shown = await connect(authenticator(store), authorization=f"{scheme} {key}")
    assert shown == Principal(tenant)


async def test_two_authorization_headers_are_refused(store: TicketStore) -> None:
    """Two Authorization headers are ambiguous, hence malformed."""
    raw = [(b"authorization", f"Bearer {KEY}".encode())] * 2
    shown = await authenticator(store).connect(Headers(raw=raw), QueryParams(""))
    assert shown is Refusal.BAD_AUTHORIZATION


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        ((VERSION, auth_item(KEY)), ACME),
        ((auth_item(KEY), VERSION), ACME),
        ((VERSION, auth_item(OTHER_KEY)), Principal("globex")),
        ((auth_item(KEY),), Refusal.UNAUTHORIZED),
        ((VERSION, auth_item(KEY), auth_item(KEY)), Refusal.UNAUTHORIZED),
        ((VERSION, "seedance.auth."), Refusal.UNAUTHORIZED),
        ((VERSION, "seedance.auth.!"), Refusal.UNAUTHORIZED),
        ((VERSION, "seedance.auth._w"), Refusal.UNAUTHORIZED),
        ((VERSION, auth_item(KEY) + "=="), Refusal.UNAUTHORIZED),
        ((VERSION,), Refusal.UNAUTHORIZED),
        ((), Refusal.UNAUTHORIZED),
    ],
)
async def test_key_as_subprotocol(
    store: TicketStore, offered: tuple[str, ...], expected: Principal | Refusal
) -> None:
    """A browser's key is one `seedance.auth.` item in base64url, beside a `seedance.v2.` item."""
    assert await connect(authenticator(store), offered=offered) == expected


async def test_ticket_opens_once(store: TicketStore) -> None:
    """A ticket is good for one connection and 30 s, and the store cannot tell its text."""
    auth = authenticator(store)
    ticket = await Tickets(cast("SessionStore", store)).issue(Principal("acme", "ada"))
    assert ticket not in store.kept
    assert store.ttl_s == [30]
    assert await connect(auth, query=f"ticket={ticket}") == Principal("acme", "ada")
    assert await connect(auth, query=f"ticket={ticket}") is Refusal.UNAUTHORIZED


async def test_ticket_with_the_store_away(store: TicketStore) -> None:
    """With the store away a ticket is neither good nor bad: try again (1013), nothing raised."""
    store.away = True
    refusal = await connect(authenticator(store), query="ticket=x")
    assert refusal is Refusal.UNAVAILABLE
    assert REFUSALS[refusal].close_code == 1013


@pytest.mark.parametrize("ticket", ["", "é", "%00", "x" * 4096, "%ED%A0%80"])
async def test_odd_tickets_are_unknown(store: TicketStore, ticket: str) -> None:
    """No text of a ticket raises."""
    assert await connect(authenticator(store), query=f"ticket={ticket}") is Refusal.UNAUTHORIZED


@pytest.mark.parametrize("name", ["token", "key", "api_key", "API_KEY", "access_token"])
@pytest.mark.parametrize("header", [{}, {"authorization": f"Bearer {KEY}"}])
async def test_key_in_the_query_is_refused(
    store: TicketStore, name: str, header: dict[str, str]
) -> None:
    """CASES 108: a key in the URL is refused, right or wrong, and beside a right header too."""
    auth = authenticator(store, "local")
    assert await connect(auth, query=f"{name}={KEY}", **header) is Refusal.UNAUTHORIZED


def test_refusals_name_nothing_shown() -> None:
    """CASES 108: every refusal has its row, and its message is fixed text."""
    assert set(REFUSALS) == set(Refusal)
    assert all("sk-" not in row.message for row in REFUSALS.values())


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://127.0.0.1:8080", True),
        ("http://localhost:8080", True),
        ("http://[::1]:8080", True),
        ("https://chat.example.com", True),
        ("https://chat.example.com:443", True),
        ("https://CHAT.example.com", True),
        ("https://app.example.org", True),
        ("null", False),
        ("", False),
        ("evil", False),
        ("https://evil.example", False),
        ("http://127.0.0.1:9999", False),
        ("http://chat.example.com", False),
        ("https://chat.example.com.evil.com", False),
        ("https://evil.com#chat.example.com", False),
        ("https://chat.example.com@evil.com", False),
        ("https://user@chat.example.com", False),
        ("https://chat.example.com:99999", False),
    ],
)
async def test_origin_must_be_allowed(
    store: TicketStore, origin: str | None, allowed: bool
) -> None:
    """CASES 109: Origin, when there is one, is on the list, key and cookie or not."""
    headers = {"authorization": f"Bearer {KEY}", "cookie": "a=b"}
    if origin is not None:
        headers["origin"] = origin
    shown = await connect(authenticator(store), **headers)
    assert shown == (ACME if allowed else Refusal.BAD_ORIGIN)
    assert REFUSALS[Refusal.BAD_ORIGIN].http_status == 403


async def test_any_origin_only_when_configured(store: TicketStore) -> None:
    """`*` lets every Origin in, also `null`."""
    auth = Authenticator(
        (),
        allowed_origins(GATEWAYS, ["*"]),
        Tickets(cast("SessionStore", store)),
        anonymous_tenant="local",
    )
    assert await connect(auth, origin="null") == Principal("local")


def test_http_requests_follow_the_same_rules(store: TicketStore) -> None:
    """HTTP has the bearer key and the Origin rule; a ticket opens sockets only."""
    auth = authenticator(store)
    request = auth.request
    assert request(Headers({"authorization": f"Bearer {KEY}"}), QueryParams("")) == ACME
    assert request(Headers({"origin": "https://evil"}), QueryParams("")) is Refusal.BAD_ORIGIN
    assert request(Headers({}), QueryParams("ticket=x")) is Refusal.UNAUTHORIZED
    anonymous = authenticator(store, "local")
    assert anonymous.request(Headers({}), QueryParams("")) == Principal("local")


async def test_every_key_is_compared(store: TicketStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 111: digests are compared, all of them, by the constant-time function."""
    compared: list[tuple[bytes, bytes]] = []
    true_compare = hmac.compare_digest

    def recording(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return true_compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", recording)
    assert await connect(authenticator(store), authorization=f"Bearer {KEY}") == ACME
    assert len(compared) == 2
    assert {len(side) for pair in compared for side in pair} == {32}


@pytest.mark.parametrize("text", ["acme", "acme:12", "acme:" + "g" * 64, ":" + "0" * 64, "a b:00"])
def test_bad_key_list_is_refused(text: str) -> None:
    """A key list that is not `tenant:sha256hex` says which entry, and not what is in it."""
    with pytest.raises(ValueError, match="entry 2 must be") as refused:
        parse_keys(f"acme:{sha256(KEY)},{text}")
    assert text not in str(refused.value)


def test_empty_key_list() -> None:
    """No keys are no keys, and trailing commas do no harm."""
    assert parse_keys("") == ()
    assert len(parse_keys(f"acme:{sha256(KEY)}, ,")) == 1


@pytest.mark.parametrize("url", ["chat.example.com", "ftp://x", "https://", ""])
def test_bad_origin_setting_is_refused(url: str) -> None:
    """What is no origin cannot be put on the list."""
    with pytest.raises(ValueError, match="must be an origin"):
        allowed_origins(GATEWAYS, [url])


# ---------------------------------------------------------------- the tenants file


class Book:
    """A tenants file that is read again when the test says so."""

    def __init__(self) -> None:
        digest = hashlib.sha256(KEY.encode()).digest()
        origins = frozenset({"https://app.acme.example:443"})
        self.now = TenantBook(
            {"acme": Tenant("acme", origins=origins), "other": Tenant("other")},
            (ApiKey("acme", digest, "ci"),),
        )


def with_book(store: TicketStore, book: Book) -> Authenticator:
    def verify(token: str) -> Principal | None:
        if token == "late.signed.token":  # noqa: S105 - the test's own
            raise TokenTimeError
        return Principal("other", "eve") if token == "signed.by.them" else None  # noqa: S105

    return Authenticator(
        parse_keys(f"other:{sha256(OTHER_KEY)}"),
        allowed_origins(GATEWAYS),
        Tickets(cast("SessionStore", store)),
        book=lambda: book.now,
        verify=verify,
    )


async def test_keys_come_and_go_with_the_file(store: TicketStore) -> None:
    """A key of the file is known by its label, and is nobody's once the file no longer has it."""
    book = Book()
    auth = with_book(store, book)
    who = await connect(auth, authorization=f"Bearer {KEY}")
    assert isinstance(who, Principal)
    assert (who.tenant, who.key) == ("acme", "ci")
    book.now = TenantBook()
    assert await connect(auth, authorization=f"Bearer {KEY}") is Refusal.BAD_AUTHORIZATION
    assert await connect(auth, authorization=f"Bearer {OTHER_KEY}") == Principal("other")


@pytest.mark.parametrize(
    ("key", "origin", "expected"),
    [
        (KEY, "https://app.acme.example", ACME),
        (KEY, "https://chat.example.com", Refusal.BAD_ORIGIN),
        (KEY, None, ACME),
        (OTHER_KEY, "https://app.acme.example", Refusal.BAD_ORIGIN),
        (OTHER_KEY, "https://chat.example.com", Principal("other")),
        ("wrong", "https://app.acme.example", Refusal.BAD_AUTHORIZATION),
        ("wrong", "https://evil.example", Refusal.BAD_ORIGIN),
    ],
)
@pytest.mark.parametrize("way", ["header", "subprotocol", "ticket"])
async def test_a_tenant_may_have_origins_of_its_own(
    store: TicketStore, way: str, key: str, origin: str | None, expected: Principal | Refusal
) -> None:
    """CASES 109: by whatever way it comes in, a tenant's page is the tenant's and nobody else's."""
    auth = with_book(store, Book())
    headers = {} if origin is None else {"origin": origin}
    if way == "header":
        shown = await connect(auth, **headers, authorization=f"Bearer {key}")
    elif way == "subprotocol":
        shown = await connect(auth, offered=(VERSION, auth_item(key)), **headers)
    else:
        who = await connect(auth, authorization=f"Bearer {key}")
        issued = await auth.tickets.issue(who) if isinstance(who, Principal) else "unknown"
        shown = await connect(auth, query=f"ticket={issued}", **headers)
    if way != "header" and expected is Refusal.BAD_AUTHORIZATION:
        expected = Refusal.UNAUTHORIZED
    assert shown == expected


async def test_a_signed_token_comes_in_where_a_key_does(store: TicketStore) -> None:
    """CASES 116: as bearer and as subprotocol; one that is late is told so, in the way's own manner."""
    auth = with_book(store, Book())
    eve = Principal("other", "eve")
    assert await connect(auth, authorization="Bearer signed.by.them") == eve
    assert await connect(auth, offered=(VERSION, auth_item("signed.by.them"))) == eve
    late = await connect(auth, authorization="Bearer late.signed.token")
    assert late is Refusal.BAD_AUTHORIZATION_TIME
    assert (REFUSALS[late].http_status, REFUSALS[late].close_code) == (401, None)
    late = await connect(auth, offered=(VERSION, auth_item("late.signed.token")))
    assert late is Refusal.UNAUTHORIZED_TIME
    assert REFUSALS[late].close_code == 4401
    assert REFUSALS[late].message.startswith("clock_skew")
