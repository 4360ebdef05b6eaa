"""JSON Web Tokens as credentials (RFC 7519), checked against a JWKS file (RFC 7517).

The key decides the algorithm, never the token: a public key is no HMAC secret, `none` is no
algorithm, and keys that a token brings along (`jwk`, `jku`, `x5c`) are not looked at. The times in
a token are judged by this host's clock with `LEEWAY_S` to spare (CASES 116).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt
from jwt.types import Options

from gateway.tickets import Principal
from mesh.document import DocumentError

__all__ = [
    "JWKS_BYTES_MAX",
    "LEEWAY_S",
    "JwtRules",
    "KeySet",
    "TokenTimeError",
    "read_jwks",
    "verify",
]

LEEWAY_S = 30
JWKS_BYTES_MAX = 256 * 1024
TOKEN_LENGTH_MAX = 8 * 1024
# RFC 7518 §3.2: an HMAC key is at least as long as the hash.
HMAC_BYTES_MIN = 32

# Three parts in base64url; an API key may look like anything else.
_COMPACT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
# Goes into routing keys and logs: nothing that an encoder would stumble over (CASES 20).
_USER = re.compile(r"[^\x00-\x1f\ud800-\udfff]{1,256}")
_ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("oct", None): "HS256"}
# What PyJWT must not judge: it would take the time from elsewhere than our clock.
_OPTIONS: Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "require": ["exp"],
}


class TokenTimeError(Exception):
    """A token that was or will be good: the clocks differ by more than the leeway, or it is over."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of a JWKS file by `kid`; one without a `kid` is under the empty name."""

    keys: Mapping[str, jwt.PyJWK]

    def key(self, kid: object) -> jwt.PyJWK | None:
        """The key that a token names; one that names none may mean the only one there is."""
        if kid is None:
            return next(iter(self.keys.values())) if len(self.keys) == 1 else None
        return self.keys.get(kid) if isinstance(kid, str) else None


@dataclass(frozen=True, slots=True)
class JwtRules:
    """What a token must say: for whom it was made and by whom, where that is asked for.

    `tenant_claim` holds the tenant, `sub` the user within it.
    """

    tenant_claim: str = "tenant"
    audience: str = ""
    issuer: str = ""


def read_jwks(text: bytes, name: str) -> KeySet:
    """Read a JWKS file; `name` stands in messages. Raises `DocumentError`."""
    if len(text) > JWKS_BYTES_MAX:
        raise DocumentError(f"{name}:1: over {JWKS_BYTES_MAX} bytes; drop keys nobody signs with")
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise DocumentError(f"{name}:{error.lineno}: no JSON ({error.msg}); mend it") from None
    except (UnicodeDecodeError, RecursionError):
        raise DocumentError(f"{name}:1: no JSON; mend it") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise DocumentError(f"{name}:1: `keys` is missing; write a JSON Web Key Set")
    keys: dict[str, jwt.PyJWK] = {}
    for place, entry in enumerate(listed):
        if isinstance(entry, dict) and entry.get("use") == "enc":
            continue  # of the same owner, but nothing is signed with it
        where = f"{name}: keys[{place}]"
        kid, key = _read_key(entry, where)
        if kid in keys:
            raise DocumentError(f"{where}.kid stands twice; give each key its own name")
        keys[kid] = key
    if not keys:
        raise DocumentError(f"{name}:1: `keys` has no key to verify with; add one")
    return KeySet(keys)


def _read_key(entry: object, where: str) -> tuple[str, jwt.PyJWK]:
    if not isinstance(entry, dict):
        raise DocumentError(f"{where} is no object; write a JSON Web Key")
    curve = entry.get("crv") if entry.get("kty") == "EC" else None
    algorithm = _ALGORITHMS.get((str(entry.get("kty")), curve))
    if algorithm is None or entry.get("alg", algorithm) != algorithm:
        known = "an RSA key for RS256, an EC key on P-256 for ES256, an oct key for HS256"
        raise DocumentError(f"{where} is of another kind; it is {known}")
    kid = entry.get("kid", "")
    if not isinstance(kid, str):
        raise DocumentError(f"{where}.kid is no text; put it in quotes")
    try:
        key = jwt.PyJWK(entry, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        raise DocumentError(f"{where} is no usable {algorithm} key; write it anew") from None
    if algorithm == "HS256" and len(key.key) < HMAC_BYTES_MIN:
        raise DocumentError(f"{where}.k is below {HMAC_BYTES_MIN} bytes; make a longer secret")
    return kid, key


def verify(
    token: str, keys: KeySet, rules: JwtRules, now_ms: int, is_tenant: Callable[[str], bool]
) -> Principal | None:
    """Whose token it is; None: nobody's, for a reason that is not told.

    Raises `TokenTimeError` when everything is right but the time: only who has the key sees that.
    """
    if len(token) > TOKEN_LENGTH_MAX or not _COMPACT.fullmatch(token):
        return None
    try:
        key = keys.key(jwt.get_unverified_header(token).get("kid"))
        if key is None:
            return None
        claims = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=rules.audience or None,
            issuer=rules.issuer or None,
            options={**_OPTIONS, "verify_aud": bool(rules.audience)},
        )
    except (jwt.PyJWTError, ValueError, RecursionError):
        return None
    tenant, user = claims.get(rules.tenant_claim), claims.get("sub")
    if not isinstance(tenant, str) or not is_tenant(tenant):
        return None
    if user is not None and not (isinstance(user, str) and _USER.fullmatch(user)):
        return None
    _check_times(claims, now_ms)
    return Principal(tenant, user)


def _check_times(claims: Mapping[str, Any], now_ms: int) -> None:
    for name, sign in (("exp", 1), ("nbf", -1), ("iat", -1)):
        at_s = claims.get(name)
        if at_s is None:
            continue
        if isinstance(at_s, bool) or not isinstance(at_s, int | float):
            raise TokenTimeError(f"`{name}` is no number of seconds")
        # NaN compares false with everything, so the comparison asks for what is right.
        if not sign * (at_s * 1000 - now_ms) > -LEEWAY_S * 1000:
            raise TokenTimeError(f"`{name}` is beyond the leeway of {LEEWAY_S} s")
