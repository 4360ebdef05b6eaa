"""Usage events on their way to the store."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gateway.session.usage import StreamFinished, UsageOutbox
from gateway.store.base import StoreUnavailableError, UsageEvent
from gateway.store.memory import MemoryStore
from tests.support.clock import FakeClock
from tests.support.flaky_store import FlakyStore


def finished(stream: str = "a", tokens: int = 3) -> UsageEvent:
    return StreamFinished(
        *("acme", "S", stream, "m", "i-0", "stop"), 7, 2, tokens, 1_000, 2_000, "00-x"
    ).event()


def test_an_event_is_named_by_its_stream() -> None:
    """A recovery that settles the same stream makes the same id (§4.9)."""
    assert finished(tokens=3).id == finished(tokens=9).id == "S/a/stream_finished"
    payload = json.loads(finished().payload)
    assert (payload["v"], payload["kind"], payload["tenant"]) == (1, "stream_finished", "acme")


def test_a_stream_under_a_forgotten_name_is_billed() -> None:
    """Whoever uses an id again after 1,024 others (§3) is not served for nothing."""
    stream = StreamFinished("acme", "S", "a", "m", "i-0", "stop", 7, 2, 3, 1_000, 2_000, "00-x")
    later = replace(stream, started_ms=1_001)
    again = stream.event(reused=True).id
    assert len({finished().id, again, later.event(reused=True).id}) == 3
    assert replace(stream, completion_tokens=9).event(reused=True).id == again


async def test_events_are_kept_until_they_are_written() -> None:
    """The store's absence costs none, and their order stays."""
    store = FlakyStore(MemoryStore(FakeClock(), 120))
    outbox = UsageOutbox(store)  # type: ignore[arg-type]
    store.away = True
    for name in "abc":
        outbox.add(finished(name))
    with pytest.raises(StoreUnavailableError):
        await outbox.flush()
    assert len(outbox) == 3
    store.away = False
    await outbox.flush()
    assert len(outbox) == 0
    assert [event.id[2] for event in store.inner.usage] == ["a", "b", "c"]


async def test_the_outbox_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the store away for ever the oldest are given up, and counted."""
    monkeypatch.setattr("gateway.session.usage.USAGE_KEPT_MAX", 2)
    outbox = UsageOutbox(MemoryStore(FakeClock(), 120))
    for name in "abc":
        outbox.add(finished(name))
    assert (len(outbox), outbox.lost) == (2, 1)
