"""Events that only a gateway can know, as metering reads them (the design, §6).

An event's id names what happened, so that a recovery, a resume or a second telling makes the same
one: (session, stream, kind) for a stream, (gateway start id, connection, kind) for a connection.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gateway.store.base import UsageEvent

__all__ = [
    "Attempt",
    "ConnectionClosed",
    "ConnectionOpened",
    "RequestMade",
    "StreamFinished",
    "request_name",
    "written",
]

_ENCODER = msgspec.json.Encoder()


class Attempt(msgspec.Struct, frozen=True):
    """The tokens of one instance's part of a stream that were put into frames."""

    model: str
    instance: str
    completion_tokens: int


class StreamFinished(msgspec.Struct, frozen=True, tag_field="kind", tag="stream_finished"):
    """What one stream cost. Times are Unix milliseconds.

    `computed_tokens` is the last instance's own count with those of the attempts before it; None
    where no instance told. `discarded_tokens` were heard, or computed after the stream was given
    up, and are in no frame. Of the framed ones the client has acknowledged `acknowledged_tokens`;
    the gateway keeps the rest, `retained_tokens`, for it (§4.2). `key` is the API key's name.
    """

    tenant: str
    session: str
    stream: str
    model: str
    instance: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    started_ms: int
    ended_ms: int
    traceparent: str
    computed_tokens: int | None = None
    discarded_tokens: int | None = None
    acknowledged_tokens: int | None = None
    retained_tokens: int | None = None
    attempts: tuple[Attempt, ...] = ()
    gateway: str = ""
    key: str = ""
    id: str = ""
    v: int = 1

    def event(self, *, reused: bool = False) -> UsageEvent:
        """The event; its id is the stream's identity, so that no recovery bills it twice.

        `reused`: an older stream of the session may have had the id. When this one began tells them
        apart.
        """
        stream = f"{self.stream}/{self.started_ms}" if reused else self.stream
        return written(self, f"{self.session}/{stream}/stream_finished")


class ConnectionOpened(msgspec.Struct, frozen=True, tag_field="kind", tag="connection_opened"):
    """A WebSocket that has begun; `mode` is what the client asked to be billed by (§1)."""

    tenant: str
    gateway: str
    opened_ms: int
    mode: str
    id: str = ""
    v: int = 1


class ConnectionClosed(msgspec.Struct, frozen=True, tag_field="kind", tag="connection_closed"):
    """A WebSocket that is over: milliseconds of the monotonic clock, bytes, last round trips in µs."""

    tenant: str
    gateway: str
    opened_ms: int
    established_ms: int
    close_wait_ms: int
    bytes_in: int
    bytes_out: int
    rtt_us: tuple[int, ...]
    id: str = ""
    v: int = 1


class RequestMade(msgspec.Struct, frozen=True, tag_field="kind", tag="request"):
    """A request for text, or one that was refused and whose key names a tenant.

    `outcome` is `asked`, or the code of the error that it was refused with.
    """

    tenant: str
    gateway: str
    at_ms: int
    outcome: str
    idempotency_id: str = ""
    id: str = ""
    v: int = 1


_Written = TypeVar("_Written", StreamFinished, ConnectionOpened, ConnectionClosed, RequestMade)


def written(event: _Written, name: str) -> UsageEvent:
    """The event under its id, as it goes to metering."""
    return UsageEvent(name, _ENCODER.encode(msgspec.structs.replace(event, id=name)))


def request_name(session: str, stream: str) -> str:
    """The id of a request that named its stream: told again on a resume, it is the same one."""
    return f"{session}/{stream}/request"
