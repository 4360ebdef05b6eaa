"""What gateways tell metering, read by tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gateway.metering.outbox import Outbox
from gateway.store.base import UsageEvent

__all__ = ["kept_events", "stream_bills", "told"]


def told(events: Iterable[UsageEvent], kind: str) -> list[dict[str, Any]]:
    """Events of one kind, in order."""
    read = (json.loads(event.payload) for event in events)
    return [event for event in read if event["kind"] == kind]


def stream_bills(events: Iterable[UsageEvent]) -> list[dict[str, Any]]:
    """The bills of finished streams, in order."""
    return told(events, "stream_finished")


def kept_events(outbox: Outbox) -> list[UsageEvent]:
    """What an outbox keeps, oldest first."""
    return [kept.event for kept in outbox._kept.values()]
