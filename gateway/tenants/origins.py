"""Where a browser's page may come from (contract §1): origins, spelled alike, and lists of them."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

__all__ = ["ANY_ORIGIN", "allowed_origins", "is_allowed"]

ANY_ORIGIN = "*"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HTTP_OF_WS = {"ws": "http", "wss": "https"}
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

Origin = tuple[str, str, int]


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


def is_allowed(text: str, allowed: frozenset[str]) -> bool:
    """Whether an `Origin` header's value is on the list."""
    if ANY_ORIGIN in allowed:
        return True
    origin = _origin(text)
    return origin is not None and _spelled(origin) in allowed
