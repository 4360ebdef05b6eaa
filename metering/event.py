"""Usage events, as they stand in the usage stream, and their strict reading.

Each has an id that names what happened and not the telling of it, so that a retry, a resume or a
replay can never count twice. An entry of the stream holds one event or several, one a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

__all__ = [
    "RTT_SAMPLES_MAX",
    "Attempt",
    "ConnectionClosed",
    "ConnectionOpened",
    "Event",
    "EventRefusedError",
    "RequestMade",
    "UsageEvent",
    "parse_entry",
    "parse_event",
]

# What an SQL BIGINT holds, and far beyond any generation.
_COUNT_MAX = 2**53
# The end of the year 9997 in Unix ms: calendars go little further.
_MOMENT_MAX = 253_339_228_799_999
_NAME_LENGTH_MAX = 512
ATTEMPTS_MAX = 64
RTT_SAMPLES_MAX = 10

# How JSON spells the one character that PostgreSQL's text does not hold. A pattern for each field
# would cost more than the rest of the reading.
_NUL_SPELLED = b"\\u0000"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_LENGTH_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=_NAME_LENGTH_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_COUNT_MAX)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=_MOMENT_MAX)]


class EventRefusedError(Exception):
    """The entry is no usage event; the message says why, without the entry's content."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One instance's part of a generation: the tokens of it that were put into frames."""

    model: Name
    instance: Text
    completion_tokens: Count


class UsageEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="stream_finished"
):
    """One finished generation, named by `id` (session, stream and kind): the ledger takes it once.

    `completion_tokens` are the tokens that were put into frames (contract §4.9); times are Unix
    milliseconds of the gateway's clock. `attempts`, when told, divide `completion_tokens` among the
    instances that made them, in order. `key` is the name of the API key that it was asked with.

    What the same tokens are in other books, where they keep one: `computed_tokens` is the instance's
    own count; `discarded_tokens` the gateway heard and put into no frame; of the framed ones the
    client had acknowledged `acknowledged_tokens` at the end, and the gateway still held
    `retained_tokens` for it.
    """

    v: Literal[1]
    id: Name
    tenant: Name
    session: Name
    stream: Name
    model: Text
    instance: Text
    finish_reason: Name
    prompt_tokens: Count
    cached_tokens: Count
    completion_tokens: Count
    started_ms: Moment
    ended_ms: Moment
    attempts: Annotated[tuple[Attempt, ...], msgspec.Meta(max_length=ATTEMPTS_MAX)] = ()
    traceparent: Text = ""
    gateway: Text = ""
    key: Text = ""
    computed_tokens: Count | None = None
    discarded_tokens: Count | None = None
    acknowledged_tokens: Count | None = None
    retained_tokens: Count | None = None


class ConnectionOpened(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="connection_opened"
):
    """One connection that has begun; `mode` is what the client asked to be billed by (§1)."""

    v: Literal[1]
    id: Name
    tenant: Name
    gateway: Name
    opened_ms: Moment
    mode: Name = "token"


class ConnectionClosed(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="connection_closed"
):
    """One connection that is over. Durations are the monotonic clock's, in milliseconds.

    TIME_WAIT is told apart because it is free: the socket is nobody's any more. `rtt_us` holds the
    last round trips that were measured, in microseconds.
    """

    v: Literal[1]
    id: Name
    tenant: Name
    gateway: Name
    opened_ms: Moment
    established_ms: Count
    close_wait_ms: Count = 0
    time_wait_ms: Count = 0
    bytes_in: Count = 0
    bytes_out: Count = 0
    rtt_us: Annotated[tuple[Count, ...], msgspec.Meta(max_length=RTT_SAMPLES_MAX)] = ()

    @property
    def ended_ms(self) -> int:
        """The end of what is billed: ESTABLISHED through CLOSE_WAIT."""
        return self.opened_ms + self.established_ms + self.close_wait_ms


class RequestMade(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="request"):
    """One request of a tenant, accepted or refused.

    `idempotency_id`: what the client named the request; its resends carry the same and count once.
    """

    v: Literal[1]
    id: Name
    tenant: Name
    at_ms: Moment
    outcome: Name
    gateway: Text = ""
    idempotency_id: Text = ""


Event = UsageEvent | ConnectionOpened | ConnectionClosed | RequestMade

_DECODER = msgspec.json.Decoder(Event)


def parse_entry(payload: bytes) -> Iterator[Event | tuple[bytes, EventRefusedError]]:
    """Each line of an entry: the event in it, or the line with why it is none."""
    try:
        events = _DECODER.decode_lines(payload) if _NUL_SPELLED not in payload else []
        for event in events:
            _check(event)
    except (msgspec.MsgspecError, UnicodeDecodeError, EventRefusedError):
        events = []
    if events:
        yield from events
        return
    for line in payload.splitlines() or [payload]:
        try:
            yield parse_event(line)
        except EventRefusedError as error:
            yield line, error


def parse_event(line: bytes) -> Event:
    """The event in one line. Raises `EventRefusedError`."""
    try:
        event = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EventRefusedError(str(error)) from None
    if _NUL_SPELLED in line:
        _check_texts(event)
    _check(event)
    return event


def _check(event: Event) -> None:
    match event:
        case UsageEvent():
            _check_stream(event)
        case ConnectionClosed():
            if event.ended_ms > _MOMENT_MAX:
                raise EventRefusedError("the connection ends after the year 9997")
        case ConnectionOpened() | RequestMade():
            pass


def _check_texts(event: Event) -> None:
    attempts = event.attempts if isinstance(event, UsageEvent) else ()
    for struct in (event, *attempts):
        for name in struct.__struct_fields__:
            value = getattr(struct, name)
            if isinstance(value, str) and "\0" in value:
                raise EventRefusedError(f"`{name}` holds a NUL character")


def _check_stream(event: UsageEvent) -> None:
    if event.cached_tokens > event.prompt_tokens:
        raise EventRefusedError("`cached_tokens` exceeds `prompt_tokens`")
    framed = sum(attempt.completion_tokens for attempt in event.attempts)
    if event.attempts and framed != event.completion_tokens:
        raise EventRefusedError("`attempts` do not add up to `completion_tokens`")
