"""JSON Web Tokens: whose they are, when they are good, and what they cannot talk us into."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gateway.signed_tokens import (
    JWKS_BYTES_MAX,
    JwtRules,
    KeySet,
    TokenTimeError,
    read_jwks,
    verify,
)
from gateway.tickets import Principal
from mesh.document import DocumentError

NOW_S = 1_800_000_000
SECRET = b"0123456789abcdef0123456789abcdef"
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ADA = Principal("acme", "ada")
RULES = JwtRules()


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwk(key: Any, kid: str) -> dict[str, Any]:
    if isinstance(key, bytes):
        return {"kty": "oct", "k": b64(key), "kid": kid}
    name = "RSAAlgorithm" if isinstance(key, rsa.RSAPublicKey) else "ECAlgorithm"
    made: dict[str, Any] = getattr(jwt.algorithms, name).to_jwk(key, as_dict=True)
    parts = ("kty", "crv", "n", "e", "x", "y")
    return {"kid": kid} | {part: made[part] for part in parts if part in made}


JWKS = {
    "keys": [
        jwk(RSA_KEY.public_key(), "r"),
        jwk(EC_KEY.public_key(), "e"),
        jwk(SECRET, "h"),
    ]
}
KEYS = read_jwks(json.dumps(JWKS).encode(), "jwks.json")
SIGNERS = {"r": (RSA_KEY, "RS256"), "e": (EC_KEY, "ES256"), "h": (SECRET, "HS256")}


def token(kid: str = "r", header: dict[str, Any] | None = None, **claims: Any) -> str:
    key, algorithm = SIGNERS[kid]
    given = {"tenant": "acme", "sub": "ada", "exp": NOW_S + 600, **claims}
    said = {name: value for name, value in given.items() if value is not ...}
    return jwt.encode(said, key, algorithm, headers={"kid": kid, **(header or {})})  # type: ignore[arg-type]


def whose(text: str, rules: JwtRules = RULES, keys: KeySet = KEYS) -> Principal | None:
    return verify(text, keys, rules, NOW_S * 1000, lambda tenant: tenant == "acme")


@pytest.mark.parametrize("kid", ["r", "e", "h"])
def test_a_rightly_signed_token_names_tenant_and_user(kid: str) -> None:
    """RS256, ES256 and HS256, each by the key that `kid` names."""
    assert whose(token(kid)) == ADA
    head, body, signature = token(kid).split(".")
    forged = json.loads(base64.urlsafe_b64decode(body + "==")) | {"tenant": "acme", "sub": "eve"}
    assert whose(".".join((head, b64(json.dumps(forged).encode()), signature))) is None


@pytest.mark.parametrize(
    ("claims", "good"),
    [
        ({"iat": NOW_S + 1}, True),
        ({"iat": NOW_S + 29}, True),
        ({"iat": NOW_S + 600}, False),
        ({"nbf": NOW_S + 29}, True),
        ({"nbf": NOW_S + 31}, False),
        ({"exp": NOW_S - 1}, True),
        ({"exp": NOW_S - 29.5}, True),
        ({"exp": NOW_S - 600}, False),
        ({"exp": 10**400}, True),
        ({"exp": float("nan")}, False),
    ],
)
def test_clocks_may_differ_by_the_leeway(claims: dict[str, Any], good: bool) -> None:
    """CASES 116: within 30 s a token is good, beyond them it is refused for its time."""
    if good:
        assert whose(token(**claims)) == ADA
    else:
        with pytest.raises(TokenTimeError):
            whose(token(**claims))


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": ...},
        {"tenant": ...},
        {"tenant": "other", "exp": NOW_S - 600},
        {"tenant": 7},
        {"sub": ""},
        {"sub": "\ud83d"},
        {"sub": "x" * 257},
    ],
)
def test_a_token_that_says_too_little_or_nonsense_is_nobodys(claims: dict[str, Any]) -> None:
    """It must end, name a tenant that exists, and name its user in a text that can be written down."""
    assert whose(token(**claims)) is None


def test_a_token_for_somebody_else_is_refused() -> None:
    """Audience and issuer count where the operator has named them."""
    rules = JwtRules(audience="seedance", issuer="https://id.example")
    assert whose(token(), rules) is None
    assert whose(token(aud="other", iss="https://id.example"), rules) is None
    assert whose(token(aud=["x", "seedance"], iss="https://id.example"), rules) == ADA
    assert whose(token(aud="anything")) == ADA
    assert whose(token(org="acme", tenant=...), JwtRules(tenant_claim="org")) == ADA


def _unsigned(algorithm: str) -> str:
    header = b64(json.dumps({"alg": algorithm, "kid": "r", "typ": "JWT"}).encode())
    body = b64(json.dumps({"tenant": "acme", "exp": NOW_S + 600}).encode())
    return f"{header}.{body}"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", "RS256"])
def test_no_signature_is_no_signature(algorithm: str) -> None:
    """CASES 116: `alg: none`, in whatever letters, opens nothing."""
    for end in (".", "." + b64(b"x"), ""):
        assert whose(_unsigned(algorithm) + end) is None


@pytest.mark.parametrize("form", ["PEM", "DER"])
def test_a_public_key_is_no_hmac_secret(form: str) -> None:
    """CASES 116: the key decides the algorithm, so that its public half cannot be signed with."""
    public = RSA_KEY.public_key().public_bytes(
        getattr(serialization.Encoding, form), serialization.PublicFormat.SubjectPublicKeyInfo
    )
    unsigned = _unsigned("HS256")
    forged = hmac.digest(public, unsigned.encode(), hashlib.sha256)
    assert whose(f"{unsigned}.{b64(forged)}") is None


def test_keys_that_a_token_brings_along_are_not_looked_at() -> None:
    """A token signed by a stranger's key, with that key in its header, is a stranger's."""
    stranger = ec.generate_private_key(ec.SECP256R1())
    header = {"kid": "e", "jwk": jwk(stranger.public_key(), "e"), "jku": "http://127.0.0.1:9/"}
    claims = {"tenant": "acme", "exp": NOW_S + 600}
    assert whose(jwt.encode(claims, stranger, "ES256", headers=header)) is None


def test_kid_names_the_key() -> None:
    """An unknown `kid` is nobody; without one the only key is meant, and of several none."""
    assert whose(token("r", {"kid": "x"})) is None
    assert whose(token("r", {"kid": "e"})) is None
    claims = {"tenant": "acme", "sub": "ada", "exp": NOW_S + 600}
    nameless = jwt.encode(claims, RSA_KEY, "RS256")
    assert whose(nameless) is None
    assert whose(nameless, keys=KeySet({"r": KEYS.keys["r"]})) == ADA
    assert whose(token(header={"crit": ["x"], "x": 1})) is None


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c", "a.b.c.d", "é.b.c", "e30.e30.", "x" * 9000])
def test_what_is_no_token_is_nobodys(text: str) -> None:
    """Any text may be shown; none raises."""
    assert whose(text) is None


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", r"jwks\.json:1: no JSON"),
        ("[]", "1: `keys` is missing; write a JSON Web Key Set"),
        ('{"keys": []}', "`keys` has no key to verify with"),
        ('{"keys": [1]}', r"keys\[0\] is no object"),
        ('{"keys": [{"kty": "OKP", "crv": "Ed25519"}]}', r"keys\[0\] is of another kind"),
        ('{"keys": [{"kty": "RSA", "alg": "HS256"}]}', r"keys\[0\] is of another kind"),
        ('{"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}', r"keys\[0\] is no usable RS256 key"),
        ('{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}', r"keys\[0\]\.k is below 32 bytes"),
        (json.dumps({"keys": JWKS["keys"][:1] * 2}), r"keys\[1\]\.kid stands twice"),
        (json.dumps({"keys": [JWKS["keys"][2] | {"kid": 1}]}), r"keys\[0\]\.kid is no text"),
    ],
)
def test_a_bad_key_set_is_refused(document: str, said: str) -> None:
    """The refusal names the key and what to do, and shows nothing of it."""
    with pytest.raises(DocumentError, match=said) as refused:
        read_jwks(document.encode(), "jwks.json")
    assert "c2hvcnQ" not in str(refused.value)


def test_a_key_set_is_bounded_and_may_hold_keys_for_encryption() -> None:
    """A provider's other keys do no harm; a file without end is refused unread."""
    other = {"kty": "OKP", "crv": "X25519", "x": "AA", "use": "enc", "kid": "c"}
    keys = read_jwks(json.dumps({"keys": [other, JWKS["keys"][0]]}).encode(), "k")
    assert set(keys.keys) == {"r"}
    with pytest.raises(DocumentError, match="over"):
        read_jwks(b" " * (JWKS_BYTES_MAX + 1), "k")
    with pytest.raises(DocumentError, match="no JSON"):
        read_jwks(b"\xff", "k")
