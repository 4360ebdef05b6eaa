"""When and where a client tries again: full jitter, over all gateways in turn (contract §3).

Back-off with full jitter spreads a thousand clients that were cut at once over the whole interval
(Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit, urlunsplit

__all__ = [
    "HEARTBEATS",
    "OPENS_AFTER",
    "Backoff",
    "Breaker",
    "BreakerState",
    "Reconnect",
    "endpoint_at",
]

# Failed connects in a row that open the breaker, and heartbeats that prove a connection after that.
OPENS_AFTER = 3
HEARTBEATS = 5

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The bounds of trying again.

    The wait before a try is drawn from [0, ceiling); the ceiling doubles from `base_s` to `max_s`, and
    begins anew after a connection that lived `healthy_s`: one that dies at once, accepted or not, never
    shortens it. A connection that brought text makes the count of `tries_max` begin anew, since somebody
    who gets on must not give up.
    """

    base_s: float = 0.5
    max_s: float = 30.0
    tries_max: int = 10
    healthy_s: float = 5.0


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


class BreakerState(Enum):
    """What a client thinks of its mesh: fine, away, or on probation."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class _Input(Enum):
    FAILED_OFTEN = "failed_often"
    CONNECTED = "connected"
    LOST = "lost"
    PROVEN = "proven"


_S, _I = BreakerState, _Input
# What is not in the table changes nothing.
_NEXT: dict[tuple[BreakerState, _Input], BreakerState] = {
    (_S.CLOSED, _I.FAILED_OFTEN): _S.OPEN,
    (_S.OPEN, _I.CONNECTED): _S.HALF_OPEN,
    (_S.HALF_OPEN, _I.LOST): _S.OPEN,
    (_S.HALF_OPEN, _I.FAILED_OFTEN): _S.OPEN,
    (_S.HALF_OPEN, _I.PROVEN): _S.CLOSED,
}


class Breaker:
    """Holds new requests back while no gateway can be reached, and until one has proven itself.

    Half-open, running streams are resumed, and nothing new is asked before `HEARTBEATS` answers.
    """

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self._failed = 0
        self._beats = 0

    def failed(self) -> None:
        """A connect did not come to a session."""
        self._failed += 1
        if self._failed >= OPENS_AFTER:
            self._move(_Input.FAILED_OFTEN)

    def connected(self) -> None:
        """A session stands."""
        self._failed = self._beats = 0
        self._move(_Input.CONNECTED)

    def lost(self) -> None:
        """A connection that stood is gone."""
        self._move(_Input.LOST)

    def beat(self) -> bool:
        """A heartbeat was answered; whether it was the last one needed."""
        self._beats += 1
        if self.state is not BreakerState.HALF_OPEN or self._beats < HEARTBEATS:
            return False
        self._move(_Input.PROVEN)
        return True

    def _move(self, what: _Input) -> None:
        self.state = _NEXT.get((self.state, what), self.state)


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
        self._doublings = 0
        self.breaker = Breaker()

    @property
    def probing(self) -> bool:
        """Whether the connection has yet to prove itself before anything new is asked on it."""
        return self.breaker.state is BreakerState.HALF_OPEN

    @property
    def url(self) -> str:
        """The endpoint whose turn it is."""
        return self._urls[self._index % len(self._urls)]

    @property
    def urls(self) -> tuple[str, ...]:
        """Every endpoint that is known, from the one whose turn it is."""
        turn = self._index % len(self._urls)
        return (*self._urls[turn:], *self._urls[:turn])

    def learn(self, gateways: Iterable[str]) -> None:
        """The gateways that a session named; a connection stands.

        A gateway without TLS is left out where the user asked for TLS: the key would be readable
        on the way.
        """
        self.breaker.connected()
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

    def failed(self) -> None:
        """A connect did not come to a session."""
        self.breaker.failed()

    def lost(self, lived_s: float) -> None:
        """A connection that stood is gone after so long."""
        self.breaker.lost()
        if lived_s >= self._backoff.healthy_s:
            self._tries = self._doublings = 0

    def progressed(self) -> None:
        """The connection brought something new."""
        self._tries = 0

    def next_delay_s(self) -> float | None:
        """Turn to the next endpoint and say how long to wait; None after the last try."""
        backoff = self._backoff
        if self._tries >= backoff.tries_max:
            self._tries = self._doublings = 0
            return None
        ceiling_s = min(backoff.max_s, backoff.base_s * 2.0**self._doublings)
        self._tries += 1
        # Beyond the bound it means nothing, and a float has an end.
        self._doublings += ceiling_s < backoff.max_s
        self._index += 1
        return self._jitter() * ceiling_s
