"""When and where a client tries again: full jitter, over all gateways in turn (contract §3).

Back-off with full jitter spreads a thousand clients that were cut at once over the whole interval
(Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

__all__ = ["Backoff", "Reconnect", "endpoint_at"]

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The bounds of trying again.

    `first_tries_max` holds until a first connection stood: a wrong address shows soon. A
    connection that lived `healthy_s`, or brought text, ends the count; one that dies at once
    does not.
    """

    base_s: float = 0.5
    max_s: float = 30.0
    tries_max: int = 10
    first_tries_max: int = 3
    healthy_s: float = 10.0


def endpoint_at(url: str, base: str) -> str:
    """`url`, path and query and all, at the gateway whose public base URL is `base`."""
    ours, theirs = urlsplit(url), urlsplit(base)
    path = theirs.path.rstrip("/") + ours.path
    return urlunsplit((theirs.scheme, theirs.netloc, path, ours.query, ""))


def _place(url: str) -> tuple[str, int | None]:
    # One's own machine has several names; trying it under each would only lose time.
    parts = urlsplit(url)
    host = parts.hostname or ""
    return ("localhost" if host in _LOOPBACK else host), parts.port


class Reconnect:
    """The endpoints known, which one is next, and after how long.

    `jitter` gives numbers evenly spread over [0, 1).
    """

    def __init__(self, url: str, jitter: Callable[[], float], backoff: Backoff) -> None:
        self._backoff = backoff
        self._jitter = jitter
        self._urls = [url]
        self._index = 0
        self._tries = 0
        self._stood = False

    @property
    def url(self) -> str:
        """The endpoint whose turn it is."""
        return self._urls[self._index % len(self._urls)]

    def learn(self, gateways: Iterable[str]) -> None:
        """The gateways that a session named; a connection stands.

        A gateway without TLS is left out where the user asked for TLS: the key would be readable
        on the way.
        """
        self._stood = True
        here, first = self.url, self._urls[0]
        secure = urlsplit(first).scheme == "wss"
        others = [
            endpoint_at(first, base)
            for base in gateways
            if urlsplit(base).scheme == "wss" or (urlsplit(base).scheme == "ws" and not secure)
        ]
        known = {_place(first): first}
        for url in others:
            known.setdefault(_place(url), url)
        self._urls = list(known.values())
        self._index = self._urls.index(here) if here in self._urls else 0

    def healthy(self) -> None:
        """The connection is a good one: the next loss begins a new count."""
        self._tries = 0

    def next_delay_s(self) -> float | None:
        """Turn to the next endpoint and say how long to wait; None after the last try."""
        backoff = self._backoff
        limit = backoff.tries_max if self._stood else backoff.first_tries_max
        # The dial that failed first was itself a try, where nothing ever stood.
        if self._tries + (0 if self._stood else 1) >= limit:
            self._tries = 0
            return None
        ceiling_s = min(backoff.max_s, backoff.base_s * 2.0**self._tries)
        self._tries += 1
        self._index += 1
        return self._jitter() * ceiling_s
