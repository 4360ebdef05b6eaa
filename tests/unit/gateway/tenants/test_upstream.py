"""The instances as tenants share them: nobody on either side sees that there is a queue and a pace."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.tenants.desk import Tenants
from gateway.tenants.fair_queue import WAIT_MAX_S, WAITING_MAX
from gateway.tenants.model import Limits, Rate, Tenant, TenantBook
from gateway.tenants.upstream import FairUpstream
from gateway.upstream.base import Attach, Open, PressureLevel, StreamHandle, Where
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.events import UpstreamAccepted, UpstreamTokens
from seedance.protocol.frames import Timing, Usage
from seedance.protocol.request import GenerateRequest
from tests.support.clock import FakeClock
from tests.support.fake_upstream import FakeCluster, FakeUpstream

ANSWER = 6


class Ear:
    """Hears one stream."""

    def __init__(self) -> None:
        self.tokens = 0
        self.heard: list[Any] = []

    def on_accepted(self, accepted: UpstreamAccepted) -> None:
        self.heard.append("accepted")

    def on_tokens(self, tokens: UpstreamTokens) -> None:
        self.tokens += len(tokens.token_ids)

    def on_done(self, finish_reason: str, usage: Usage, timing: Timing) -> None:
        self.heard.append(finish_reason)

    def on_error(self, error: SeedanceError, usage: Usage | None) -> None:
        self.heard.append(error)

    def on_pressure(self, level: PressureLevel, reason: str) -> None:
        self.heard.append(level)

    def on_broken(self) -> None:
        self.heard.append("broken")


class FixedTenants(Tenants):
    """Tenants as a test writes them down."""

    def __init__(self, clock: FakeClock, *tenants: Tenant) -> None:
        self._fixed = TenantBook({tenant.name: tenant for tenant in tenants})
        super().__init__(clock=clock)

    @property
    def book(self) -> TenantBook:
        return self._fixed


class Gateway:
    """A fair way to fake instances, moved step by step."""

    def __init__(self, *tenants: Tenant, places: int = 8) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(lambda _: [b"x"] * ANSWER, ("i-0",), auto=False)
        self.inner = FakeUpstream(self.cluster)
        self.fair = FairUpstream(self.inner, FixedTenants(self.clock, *tenants), self.clock, places)
        self._count = 0

    def open(
        self, tenant: str = "acme", credit: int | None = None, **fields: Any
    ) -> tuple[Ear, StreamHandle]:
        self._count += 1
        ear = Ear()
        spec = Open(f"s/{self._count}", 1, GenerateRequest(prompt="?"), tenant, credit=credit)
        for name, value in fields.items():
            object.__setattr__(spec, name, value)
        return ear, self.fair.open(self.fair.choose(Where("u")), spec, ear)

    def steps(self, count: int = 20) -> None:
        for _ in range(count):
            self.cluster.step()


LIMITED = Tenant("acme", weight=3, limits=Limits(tokens=Rate(2, 2, 2, 2)))


async def test_without_limits_it_is_the_upstream_itself() -> None:
    """Answers come as they come, with the tenant's weight for the engine."""
    gateway = Gateway(Tenant("acme", weight=3))
    ear, handle = gateway.open(credit=2)
    assert handle.instance == "i-0"
    gateway.steps()
    assert ear.tokens == 2
    handle.add_credit(10)
    gateway.steps()
    assert (ear.heard, ear.tokens) == (["accepted", "stop"], ANSWER)
    assert gateway.inner.opened[0].weight == 3
    handle.release()
    assert gateway.cluster.instances["i-0"].released == ["s/1"]
    assert gateway.fair.models() == ["fake"]
    assert gateway.fair.ready()
    assert gateway.fair.pressure() is PressureLevel.NONE


async def test_a_limit_that_comes_later_paces_who_runs_already() -> None:
    """The tenants file is read again: what a stream was given it has, what it asks for from now on is paced."""
    gateway = Gateway(Tenant("acme"))
    ear, handle = gateway.open(credit=1)
    gateway.steps()
    gateway.fair.tenants.of("acme").become(LIMITED, gateway.clock.monotonic())
    handle.add_credit(10)
    gateway.steps()
    assert ear.tokens == 3
    gateway.clock.advance(0.5)
    allowance = gateway.fair.tenants.of("acme")
    gateway.fair._pacing[allowance].cancel()
    gateway.fair._pace_on(allowance)  # as the timer does
    gateway.steps()
    assert ear.tokens == 4
    handle.cancel()
    gateway.steps()
    assert ear.heard[-1] == "cancelled"


async def test_who_waits_keeps_the_credit_that_it_was_given() -> None:
    """A stream in the queue looks like one whose instance has not answered yet."""
    gateway = Gateway(places=1)
    first, _ = gateway.open()
    second, handle = gateway.open(credit=1)
    handle.add_credit(3)
    assert len(gateway.inner.opened) == 1
    gateway.steps(2)
    assert gateway.inner.opened[1].credit == 4
    gateway.steps()
    assert first.heard[-1] == "stop"
    assert second.tokens == 4


async def test_who_waits_can_be_ended() -> None:
    """Cancelled, its end is heard; released or abandoned, nothing is; the instance hears of none."""
    gateway = Gateway(places=1)
    gateway.open()
    waiting = [gateway.open() for _ in range(3)]
    waiting[0][1].cancel()
    waiting[0][1].cancel()
    waiting[1][1].release()
    waiting[2][1].abandon()
    await asyncio.sleep(0)
    assert [ear.heard for ear, _ in waiting] == [["cancelled"], [], []]
    gateway.steps()
    assert len(gateway.inner.opened) == 1
    assert gateway.fair.queue.waiting == 0


async def test_a_lane_that_is_full_refuses_with_a_time() -> None:
    """Over its own bound a tenant is told to come later; nobody else is."""
    gateway = Gateway(places=1)
    gateway.open()
    for _ in range(WAITING_MAX):
        gateway.open()
    refused, _ = gateway.open()
    gone, handle = gateway.open()
    handle.release()
    other, _ = gateway.open("other")
    await asyncio.sleep(0)
    (error,) = refused.heard
    assert (error.code, error.retry_after_ms) == (ErrorCode.OVERLOADED, 1000)
    assert gone.heard == []
    gateway.steps(3)
    assert other.heard


async def test_who_waits_too_long_is_told() -> None:
    """A minute in the queue is an answer, too: `overloaded`."""
    gateway = Gateway(places=1)
    _, first = gateway.open(credit=0)
    ear, _ = gateway.open()
    gateway.clock.advance(WAIT_MAX_S)
    first.cancel()
    gateway.fair.advance()
    await asyncio.sleep(0)
    assert ear.heard[0].code is ErrorCode.OVERLOADED


async def test_a_stream_that_ran_does_not_queue_again() -> None:
    """One whose instance died, or that came from another gateway, has had its turn."""
    gateway = Gateway(places=1)
    gateway.open(credit=0)
    moved, _ = gateway.open(forced_prefix=(0, 1))
    gateway.steps()
    assert (moved.tokens, moved.heard[-1]) == (ANSWER - 2, "stop")
    ear = Ear()
    gateway.fair.attach("i-0", Attach("s/1", 2, 0, credit=None, tenant="acme"), ear)
    gateway.steps()
    assert ear.heard[0] == "accepted"


async def test_a_broken_call_gives_its_place_back() -> None:
    """The next one goes ahead."""
    gateway = Gateway(places=1)
    first, _ = gateway.open(credit=0)
    gateway.open()
    gateway.cluster.cut("i-0")
    gateway.steps(2)
    gateway.cluster.kill("i-0")
    gateway.steps(2)
    assert first.heard[-1] in ("accepted", "broken")
    assert len(gateway.inner.opened) == 2 or gateway.fair.queue.waiting == 1


async def test_over_its_rate_a_stream_slows_and_is_not_cut() -> None:
    """Two tokens per second after a burst of two: the rest comes with time, all of it."""
    gateway = Gateway(LIMITED)
    ear, handle = gateway.open(credit=4)
    gateway.steps()
    assert ear.tokens == 2
    handle.add_credit(100)
    for second in range(1, 3):
        gateway.clock.advance(1)
        gateway.fair._pace_on(gateway.fair.tenants.of("acme"))
        gateway.steps()
        assert ear.tokens == 2 + 2 * second
    assert ear.heard[-1] == "stop"


async def test_who_bounds_nothing_keeps_the_pace_as_well() -> None:
    """An answer in one piece comes from an engine that is given no more than the rate."""
    gateway = Gateway(LIMITED)
    ear, _ = gateway.open(credit=None)
    free, _ = gateway.open("other", credit=None)
    gateway.steps()
    assert (ear.tokens, free.tokens) == (2, ANSWER)


async def test_unused_credit_is_there_for_the_next() -> None:
    """A stream that ends early has cost what it made."""
    gateway = Gateway(Tenant("acme", limits=Limits(tokens=Rate(1, 10, 1, 1))))
    gateway.open(credit=9)
    gateway.steps()
    tokens = gateway.fair.tenants.of("acme").pacer.tokens
    assert tokens is not None
    assert tokens.room(gateway.clock.now) == 10 - ANSWER


async def test_text_is_paced_by_bytes() -> None:
    """A tenant over its bytes is given no more credit until they have flowed in."""
    gateway = Gateway(Tenant("acme", limits=Limits(bytes=Rate(1, 3, 1, 1))))
    ear, handle = gateway.open(credit=4)
    gateway.steps()
    handle.add_credit(10)
    gateway.steps()
    assert ear.tokens == 4
    gateway.clock.advance(1)
    gateway.fair._pace_on(gateway.fair.tenants.of("acme"))
    gateway.steps()
    assert ear.heard[-1] == "stop"
