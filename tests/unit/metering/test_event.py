"""Usage events are read strictly."""

from __future__ import annotations

import json

import pytest

from metering.event import ConnectionClosed, EventRefusedError, RequestMade, UsageEvent, parse_event
from tests.support.usage_events import connection_payload, request_payload, usage_payload


def test_event_as_gateways_write_it() -> None:
    """Every field of the event arrives, and fields that are unknown do no harm."""
    event = parse_event(usage_payload(later_field=[1]))
    assert isinstance(event, UsageEvent)
    assert (event.id, event.tenant, event.model) == ("s1/a/stream_finished", "acme", "smol")
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (7, 2, 5)
    assert (event.started_ms, event.ended_ms) == (1_000, 2_000)


@pytest.mark.parametrize(
    "changes",
    [
        {"v": 2},
        {"kind": "other"},
        {"id": ""},
        {"id": "x" * 513},
        {"id": "a\0b"},
        {"id": 7},
        {"tenant": None},
        {"prompt_tokens": -1},
        {"prompt_tokens": 1.5},
        {"prompt_tokens": True},
        {"completion_tokens": 2**64},
        {"cached_tokens": 8},
        {"ended_ms": "now"},
        {"stream": "\ud83d"},
    ],
)
def test_bad_event_is_refused(changes: dict[str, object]) -> None:
    """A wrong type, range or version is refused with a reason."""
    with pytest.raises(EventRefusedError):
        parse_event(usage_payload(**changes))


@pytest.mark.parametrize("name", ["v", "id", "tenant", "prompt_tokens", "ended_ms"])
def test_missing_field_is_refused(name: str) -> None:
    """A bill is never made from a default: a missing field is refused, and named."""
    event = json.loads(usage_payload())
    del event[name]
    with pytest.raises(EventRefusedError, match=name):
        parse_event(json.dumps(event).encode())


@pytest.mark.parametrize("payload", [b"", b"[]", b"null", b"{", b"\xff", b'{"v":NaN}'])
def test_no_json_object_is_refused(payload: bytes) -> None:
    """What is no JSON object is refused, never raised as something else."""
    with pytest.raises(EventRefusedError):
        parse_event(payload)


def test_connection_ends_where_it_is_free() -> None:
    """CASES 102: ESTABLISHED and CLOSE_WAIT make its length, TIME_WAIT does not."""
    event = parse_event(connection_payload(close_wait_ms=5_000, time_wait_ms=60_000))
    assert isinstance(event, ConnectionClosed)
    assert event.ended_ms == 65_000


def test_refused_request_is_an_event() -> None:
    """CASES 102: a 401 whose key names a tenant is told as a request of that tenant."""
    event = parse_event(request_payload(outcome="unauthorized"))
    assert isinstance(event, RequestMade)
    assert (event.tenant, event.outcome) == ("acme", "unauthorized")


@pytest.mark.parametrize(
    "payload",
    [
        connection_payload(rtt_us=[1] * 11),
        connection_payload(opened_ms=253_339_228_799_999),
        connection_payload(established_ms=-1),
        connection_payload(v=2),
        request_payload(at_ms=2**53),
        request_payload(tenant=""),
        usage_payload(attempts=[{"model": "a", "instance": "i", "completion_tokens": 4}]),
        usage_payload(attempts=[{"model": "", "instance": "i", "completion_tokens": 5}]),
    ],
)
def test_other_kinds_are_read_as_strictly(payload: bytes) -> None:
    """Ranges, versions and sums are checked for every kind."""
    with pytest.raises(EventRefusedError):
        parse_event(payload)
