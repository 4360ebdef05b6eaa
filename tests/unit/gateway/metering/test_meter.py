"""What a gateway measures, and its meeting with metering."""

from __future__ import annotations

import json

import pytest

from gateway.metering.meter import MEET_S, UsageMeter
from gateway.store.base import StoreUnavailableError, UsageMarks
from gateway.store.memory import MemoryStore
from tests.support.clock import FakeClock
from tests.support.flaky_store import FlakyStore
from tests.support.told_usage import kept_events, told


class FakeSocket:
    """A WebSocket whose measures a test sets."""

    def __init__(self, clock: FakeClock) -> None:
        self.opened_at = clock.monotonic()
        self.ended_at: float | None = None
        self.lost_at: float | None = None
        self.bytes_in = self.bytes_out = 0
        self.rtts = iter(range(1_000, 100_000, 1_000))
        self.on_lost = lambda: None

    def round_trip_us(self) -> int | None:
        return next(self.rtts)


class Desk:
    """A meter on a memory store that may be away."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.memory = MemoryStore(self.clock, 120)
        self.store = FlakyStore(self.memory)
        self.meter = UsageMeter(self.store, self.clock)  # type: ignore[arg-type]

    def connect(self) -> FakeSocket:
        socket = FakeSocket(self.clock)
        self.meter.connected(socket, "acme", "connection")
        return socket

    def closed(self) -> list[dict[str, object]]:
        return told(kept_events(self.meter.outbox), "connection_closed")

    async def meet(self) -> None:
        self.clock.advance(MEET_S)
        await self.meter.flush()

    @property
    def lease(self) -> dict[str, dict[str, object]]:
        lease = self.memory.leases[self.meter.gateway]
        return {name: json.loads(record) for name, record in lease.connections.items()}


def test_a_connection_is_open_from_its_upgrade_to_the_end_of_close_wait() -> None:
    """CASES 102: 5 s of CLOSE_WAIT are told, TIME_WAIT is nobody's; the last ten round trips."""
    desk = Desk()
    socket = desk.connect()
    desk.clock.advance(60)
    socket.bytes_in, socket.bytes_out = 100, 2_000
    socket.ended_at = desk.clock.monotonic()
    desk.clock.advance(5)
    socket.lost_at = desk.clock.monotonic()
    socket.on_lost()
    socket.on_lost()  # told twice, it has ended once
    (closed,) = desk.closed()
    (opened,) = told(kept_events(desk.meter.outbox), "connection_opened")
    assert (closed["established_ms"], closed["close_wait_ms"]) == (60_000, 5_000)
    assert (closed["bytes_in"], closed["bytes_out"], closed["rtt_us"]) == (100, 2_000, [1_000])
    assert closed["id"] == f"{desk.meter.gateway}/1/connection_closed"
    assert (opened["mode"], opened["opened_ms"]) == ("connection", closed["opened_ms"])


def test_a_wall_clock_that_is_set_back_changes_no_duration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CASES 116: durations are the monotonic clock's."""
    desk = Desk()
    socket = desk.connect()
    desk.clock.advance(3)
    monkeypatch.setattr(desk.clock, "wall_ms", lambda: 0)
    socket.lost_at = desk.clock.monotonic()
    socket.on_lost()
    assert desk.closed()[0]["established_ms"] == 3_000


def test_a_connection_lost_while_it_was_let_in_has_ended() -> None:
    """Nobody waits for a word that was said already."""
    desk = Desk()
    socket = FakeSocket(desk.clock)
    socket.lost_at = desk.clock.monotonic()
    desk.meter.connected(socket, "acme", "token")
    assert len(desk.closed()) == 1


async def test_the_lease_says_what_is_new() -> None:
    """Every second: a beat, connections with traffic since, and those that are gone."""
    desk = Desk()
    one, two = desk.connect(), desk.connect()
    await desk.meet()
    assert len(desk.lease) == 2
    one.bytes_out = 500
    await desk.meet()
    ((name, record),) = desk.lease.items()
    assert (name, record["bytes_out"]) == (f"{desk.meter.gateway}/1", 500)
    assert record["rtt_us"] == [1_000, 2_000, 3_000]
    two.lost_at = desk.clock.monotonic()
    two.on_lost()
    await desk.meet()
    lease = desk.memory.leases[desk.meter.gateway]
    assert (lease.gone, lease.connections) == ((f"{desk.meter.gateway}/2",), {})
    assert lease.beat_ms == round(desk.clock.monotonic() * 1_000)


async def test_after_an_absence_the_lease_is_told_whole() -> None:
    """What the store may not have heard, or has lost, is said again."""
    desk = Desk()
    desk.connect()
    gone = desk.connect()
    await desk.meet()
    gone.lost_at = desk.clock.monotonic()
    gone.on_lost()
    await desk.meter.flush()
    desk.store.away = True
    with pytest.raises(StoreUnavailableError):
        await desk.meet()
    desk.store.away = False
    await desk.meet()
    lease = desk.memory.leases[desk.meter.gateway]
    assert len(desk.lease) == 1
    assert lease.gone == (f"{desk.meter.gateway}/2",)


async def test_with_a_full_usage_stream_events_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's memory is for sessions: while a million entries wait, nothing is added."""
    desk = Desk()
    full = UsageMarks(waiting=1_000_000)

    async def meet(_lease: object) -> UsageMarks:
        return full

    monkeypatch.setattr(desk.store, "meet_metering", meet, raising=False)
    await desk.meet()
    desk.meter.request("acme")
    await desk.meet()
    assert len(desk.memory.usage) == 0
    full = UsageMarks()
    await desk.meet()
    await desk.meter.flush()
    assert len(desk.memory.usage) == 1


def test_a_refused_caller_is_a_request_of_the_tenant_whose_key_was_shown() -> None:
    """CASES 102: a 401 counts 1 where the key names a tenant, and nothing where it does not."""
    desk = Desk()
    desk.meter.refused(None)
    desk.meter.refused("acme")
    desk.meter.refused("acme")
    requests = told(kept_events(desk.meter.outbox), "request")
    assert [(r["tenant"], r["outcome"]) for r in requests] == [("acme", "unauthorized")] * 2
    assert len({r["id"] for r in requests}) == 2
