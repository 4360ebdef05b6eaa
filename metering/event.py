"""A usage event, as gateways write it into the usage stream, and its strict reading."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = ["EventRefusedError", "UsageEvent", "parse_event"]

# What an SQL BIGINT holds, and far beyond any generation.
_COUNT_MAX = 2**53
_NAME_LENGTH_MAX = 512

_NO_NUL = r"^[^\x00]*$"  # PostgreSQL's text holds none

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_LENGTH_MAX, pattern=_NO_NUL)]
Text = Annotated[str, msgspec.Meta(max_length=_NAME_LENGTH_MAX, pattern=_NO_NUL)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_COUNT_MAX)]


class EventRefusedError(Exception):
    """The entry is no usage event; the message says why, without the entry's content."""


class UsageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One finished generation, named by `id` (session, stream and kind): the ledger takes it once.

    `completion_tokens` are the tokens that were put into frames (contract §4.9); times are Unix
    milliseconds of the gateway's clock.
    """

    v: Literal[1]
    id: Name
    kind: Literal["stream_finished"]
    tenant: Name
    session: Name
    stream: Name
    model: Text
    instance: Text
    finish_reason: Name
    prompt_tokens: Count
    cached_tokens: Count
    completion_tokens: Count
    started_ms: Count
    ended_ms: Count
    traceparent: Text = ""


_DECODER = msgspec.json.Decoder(UsageEvent)


def parse_event(payload: bytes) -> UsageEvent:
    """The event in an entry's payload. Raises `EventRefusedError`."""
    try:
        event = _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EventRefusedError(str(error)) from None
    if event.cached_tokens > event.prompt_tokens:
        raise EventRefusedError("`cached_tokens` exceeds `prompt_tokens`")
    return event
