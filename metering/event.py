"""Usage events, as they stand in the usage stream, and their strict reading.

Three kinds, each with an id that names what happened and not the telling of it, so that a retry, a
resume or a replay can never count twice.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = [
    "RTT_SAMPLES_MAX",
    "Attempt",
    "ConnectionClosed",
    "Event",
    "EventRefusedError",
    "RequestMade",
    "UsageEvent",
    "parse_event",
]

# What an SQL BIGINT holds, and far beyond any generation.
_COUNT_MAX = 2**53
# The end of the year 9997 in Unix ms: calendars go little further.
_MOMENT_MAX = 253_339_228_799_999
_NAME_LENGTH_MAX = 512
ATTEMPTS_MAX = 64
RTT_SAMPLES_MAX = 10

_NO_NUL = r"^[^\x00]*$"  # PostgreSQL's text holds none

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_LENGTH_MAX, pattern=_NO_NUL)]
Text = Annotated[str, msgspec.Meta(max_length=_NAME_LENGTH_MAX, pattern=_NO_NUL)]
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
    instances that made them, in order.
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
    idempotency_id: Text = ""


Event = UsageEvent | ConnectionClosed | RequestMade

_DECODER = msgspec.json.Decoder(Event)


def parse_event(payload: bytes) -> Event:
    """The event in an entry's payload. Raises `EventRefusedError`."""
    try:
        event = _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EventRefusedError(str(error)) from None
    match event:
        case UsageEvent():
            _check_stream(event)
        case ConnectionClosed():
            if event.ended_ms > _MOMENT_MAX:
                raise EventRefusedError("the connection ends after the year 9997")
        case RequestMade():
            pass
    return event


def _check_stream(event: UsageEvent) -> None:
    if event.cached_tokens > event.prompt_tokens:
        raise EventRefusedError("`cached_tokens` exceeds `prompt_tokens`")
    framed = sum(attempt.completion_tokens for attempt in event.attempts)
    if event.attempts and framed != event.completion_tokens:
        raise EventRefusedError("`attempts` do not add up to `completion_tokens`")
