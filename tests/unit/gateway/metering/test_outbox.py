"""Usage events between their making and metering's word that the ledger has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.metering.outbox import MISSING_AFTER_S, Outbox
from gateway.metering.spool import Spool
from gateway.store.base import UsageEvent
from tests.support.clock import FakeClock


def event(name: str) -> UsageEvent:
    return UsageEvent(name, b'{"id":"%b","gateway":"g"}' % name.encode())


def outbox_with(*names: str) -> tuple[Outbox, FakeClock]:
    clock = FakeClock()
    outbox = Outbox(clock)
    for name in names:
        outbox.add(event(name))
    return outbox, clock


def names_of(events: list[UsageEvent]) -> str:
    return "".join(e.id for e in events)


def test_events_are_told_in_order_and_kept_until_they_are_committed() -> None:
    """What the stream has is not told again, and not forgotten either."""
    outbox, _ = outbox_with("a", "b", "c")
    assert names_of(outbox.unsent(2)) == "ab"
    outbox.sent(outbox.unsent(2))
    assert names_of(outbox.unsent(10)) == "c"
    assert len(outbox) == 3
    outbox.committed(["a", "c", "unknown"])
    assert (len(outbox), outbox.unsent(10)) == (1, [])


def test_what_the_store_lost_is_told_again() -> None:
    """Everything that waits there was told later: the event is not among it (§6 of the design)."""
    outbox, clock = outbox_with("a", "b")
    outbox.sent(outbox.unsent(10))
    clock.advance(MISSING_AFTER_S + 1)
    outbox.add(event("c"))
    outbox.sent(outbox.unsent(10))
    assert outbox.look_for_missing(0) == 2
    assert names_of(outbox.unsent(10)) == "ab"
    outbox.sent(outbox.unsent(10))
    assert outbox.look_for_missing(0) == 0


def test_what_may_still_wait_in_the_stream_is_not_told_again() -> None:
    """Metering may be away for hours: while an entry as old as the event waits, so may the event."""
    outbox, clock = outbox_with("a")
    outbox.sent(outbox.unsent(10))
    clock.advance(3_600)
    assert outbox.look_for_missing(3_600) == 0
    assert outbox.look_for_missing(3_600 - MISSING_AFTER_S - 1) == 1


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the store away for ever the oldest are given up, and counted; told ones are not lost."""
    monkeypatch.setattr("gateway.metering.outbox.USAGE_KEPT_MAX", 2)
    outbox, _ = outbox_with("a", "b", "c")
    assert (len(outbox), outbox.lost) == (2, 1)
    outbox.sent(outbox.unsent(10))
    outbox.add(event("d"))
    assert (len(outbox), outbox.lost) == (2, 1)


async def test_a_killed_gateways_events_are_taken_up_once(tmp_path: Path) -> None:
    """What was saved is told by the next process on the folder; what was committed is not."""
    clock = FakeClock()
    spool = Spool(tmp_path, "one")
    first = Outbox(clock, spool)
    for name in "abc":
        first.add(event(name))
    await first.save()
    first.sent(first.unsent(10))
    release_locks(spool)  # as the system does for a process that is killed
    second = Outbox(clock, Spool(tmp_path, "two"))
    await second.take_up()
    assert names_of(second.unsent(10)) == "abc"
    second.committed("abc")
    await second.close()
    third = Outbox(clock, Spool(tmp_path, "three"))
    await third.take_up()
    assert third.unsent(10) == []
    await third.close()


def release_locks(spool: Spool) -> None:
    for segment in spool._segments.values():
        os.close(segment.fd)


async def test_given_up_with_a_spool_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What memory does not hold any more is still on the disk, for the next process."""
    monkeypatch.setattr("gateway.metering.outbox.USAGE_KEPT_MAX", 2)
    outbox = Outbox(FakeClock(), Spool(tmp_path, "one"))
    for name in "abc":
        outbox.add(event(name))
        await outbox.save()
    assert (len(outbox), outbox.lost) == (2, 0)
    outbox.committed("bc")
    await outbox.close()
    monkeypatch.undo()
    after = Outbox(FakeClock(), Spool(tmp_path, "two"))
    await after.take_up()
    assert "a" in names_of(after.unsent(10))
    await after.close()
