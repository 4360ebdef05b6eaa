"""The token that keeps a caller without a name on one instance."""

from __future__ import annotations

import pytest
from starlette.requests import HTTPConnection

from gateway.affinity import AFFINITY_COOKIE, AffinityTokens
from gateway.tickets import Principal

LOCAL = Principal("local")


def _caller(address: str = "10.0.0.1", cookie: str = "", scheme: str = "ws") -> HTTPConnection:
    headers = [(b"user-agent", b"curl"), (b"host", b"gateway")]
    if cookie:
        headers.append((b"cookie", f"{AFFINITY_COOKIE}={cookie}".encode()))
    return HTTPConnection(
        {
            "type": "http",
            "scheme": scheme,
            "path": "/",
            "query_string": b"",
            "headers": headers,
            "client": (address, 1),
        }
    )


def _token(set_cookie: str) -> str:
    return set_cookie.partition(";")[0].partition("=")[2]


def test_the_token_outlives_the_address() -> None:
    """Whoever brings it goes where it went before, by whatever network; it is not given again."""
    tokens = AffinityTokens("secret")
    first = tokens.of(_caller(), LOCAL)
    again = tokens.of(_caller("192.0.2.7", _token(first.set_cookie)), LOCAL)
    assert again.user == first.user
    assert again.set_cookie == ""
    assert tokens.of(_caller("192.0.2.7"), LOCAL).user != first.user


def test_all_gateways_say_the_same() -> None:
    """CASES 70: one caller has one name at every gateway, with and without a secret of the mesh."""
    for secret in ("secret", ""):
        one, other = AffinityTokens(secret), AffinityTokens(secret)
        first = one.of(_caller(), LOCAL)
        assert other.of(_caller(), LOCAL).user == first.user
        assert other.of(_caller(cookie=_token(first.set_cookie)), LOCAL).user == first.user


@pytest.mark.parametrize("forged", ["x", "", "é" * 32, "A" * 32, "A" * 5000])
def test_a_forged_token_is_not_heeded(forged: str) -> None:
    """It counts as none: the caller goes by its address and is given a right one."""
    tokens = AffinityTokens("secret")
    found = tokens.of(_caller(cookie=forged), LOCAL)
    assert found == tokens.of(_caller(), LOCAL)


def test_a_token_is_its_tenants_own() -> None:
    """Another tenant's, or another mesh's, is forged."""
    tokens = AffinityTokens("secret")
    token = _token(tokens.of(_caller(), LOCAL).set_cookie)
    assert tokens.of(_caller(cookie=token), Principal("acme")).set_cookie
    assert AffinityTokens("else").of(_caller(cookie=token), LOCAL).set_cookie


def test_a_user_needs_no_token() -> None:
    """An authenticated user is the affinity, before the one that a request names."""
    tokens = AffinityTokens("secret")
    assert tokens.of(_caller(), Principal("local", "ada"), "bob").user == "local/ada"
    assert tokens.of(_caller(), LOCAL, "bob").user == "local/bob"
    assert not tokens.of(_caller(), LOCAL, "bob").set_cookie


def test_the_cookie_says_no_more_than_it_must() -> None:
    """Scripts of a page cannot read it, other sites do not send it, TLS keeps it."""
    plain = AffinityTokens().of(_caller(), LOCAL).set_cookie
    assert "HttpOnly; SameSite=Lax" in plain
    assert "Secure" not in plain
    assert "Secure" in AffinityTokens().of(_caller(scheme="wss"), LOCAL).set_cookie
