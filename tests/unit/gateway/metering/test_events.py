"""Events are named by what happened, and written as metering reads them."""

from __future__ import annotations

import msgspec

from gateway.metering.events import (
    Attempt,
    ConnectionClosed,
    ConnectionOpened,
    RequestMade,
    StreamFinished,
    request_name,
    written,
)
from metering.event import parse_event

STREAM = StreamFinished(
    *("acme", "S", "a", "m", "i-0", "stop"), 7, 2, 3, 1_000, 2_000, "00-x", gateway="g"
)


def test_a_stream_is_named_by_its_identity() -> None:
    """A recovery that settles the same stream makes the same id (§4.9)."""
    later = msgspec.structs.replace(STREAM, completion_tokens=9)
    assert STREAM.event().id == later.event().id == "S/a/stream_finished"


def test_a_stream_under_a_forgotten_name_is_billed() -> None:
    """Whoever uses an id again after 1,024 others (§3) is not served for nothing."""
    again = STREAM.event(reused=True).id
    later = msgspec.structs.replace(STREAM, started_ms=1_001).event(reused=True).id
    assert len({STREAM.event().id, again, later}) == 3
    recovered = msgspec.structs.replace(STREAM, completion_tokens=9)
    assert recovered.event(reused=True).id == again


def test_metering_reads_every_kind() -> None:
    """What the one package writes, the other takes, field by field."""
    attempts = (Attempt("m", "i-0", 1), Attempt("m", "i-1", 2))
    told = msgspec.structs.replace(
        STREAM,
        computed_tokens=5,
        discarded_tokens=2,
        acknowledged_tokens=1,
        retained_tokens=2,
        attempts=attempts,
    )
    closed = ConnectionClosed("acme", "g", 1, 2, 3, 4, 5, (6, 7))
    events = [
        told.event(),
        written(ConnectionOpened("acme", "g", 1, "token"), "g/1/connection_opened"),
        written(closed, "g/1/connection_closed"),
        written(RequestMade("acme", "g", 1, "asked", "key"), request_name("S", "a")),
    ]
    for event in events:
        read = msgspec.json.decode(msgspec.json.encode(parse_event(event.payload)))
        sent = msgspec.json.decode(event.payload)
        assert read["id"] == event.id
        assert {name: read[name] for name in sent} == sent
