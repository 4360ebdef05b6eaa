"""Usage events as a gateway writes them."""

from __future__ import annotations

import json

__all__ = [
    "TRACEPARENT",
    "TRACE_ID",
    "connection_payload",
    "opening_payload",
    "request_payload",
    "usage_payload",
]

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def usage_payload(event_id: str = "s1/a/stream_finished", **changes: object) -> bytes:
    """The JSON of one finished generation: 7 prompt tokens (2 cached) and 5 of the answer, within a second."""
    event = {
        "v": 1,
        "id": event_id,
        "kind": "stream_finished",
        "tenant": "acme",
        "session": "s1",
        "stream": "a",
        "model": "smol",
        "instance": "inference-0",
        "finish_reason": "stop",
        "prompt_tokens": 7,
        "cached_tokens": 2,
        "completion_tokens": 5,
        "started_ms": 1_000,
        "ended_ms": 2_000,
        "traceparent": TRACEPARENT,
    }
    if "ended_ms" not in changes and isinstance(started_ms := changes.get("started_ms"), int):
        event["ended_ms"] = started_ms + 1_000
    return json.dumps(event | changes).encode()


def opening_payload(event_id: str = "g1/c1/connection_opened", **changes: object) -> bytes:
    """The JSON of a connection that has begun."""
    event = {
        "v": 1,
        "id": event_id,
        "kind": "connection_opened",
        "tenant": "acme",
        "gateway": "gateway-0",
        "opened_ms": 0,
        "mode": "token",
    }
    return json.dumps(event | changes).encode()


def connection_payload(event_id: str = "g1/c1/connection_closed", **changes: object) -> bytes:
    """The JSON of a connection that was open for 60 s, without traffic."""
    event = {
        "v": 1,
        "id": event_id,
        "kind": "connection_closed",
        "tenant": "acme",
        "gateway": "gateway-0",
        "opened_ms": 0,
        "established_ms": 60_000,
    }
    return json.dumps(event | changes).encode()


def request_payload(event_id: str = "g1/c1/request/1", **changes: object) -> bytes:
    """The JSON of one accepted request."""
    event = {
        "v": 1,
        "id": event_id,
        "kind": "request",
        "tenant": "acme",
        "at_ms": 1_000,
        "outcome": "accepted",
    }
    return json.dumps(event | changes).encode()
