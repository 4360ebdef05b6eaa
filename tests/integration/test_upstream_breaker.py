"""Instances that answer late, or not at all, lose new streams and get them back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from gateway.upstream import link
from gateway.upstream.base import Open, Where
from gateway.upstream.breaker import SAMPLES_MIN, BreakerState
from gateway.upstream.membership import StaticList
from gateway.upstream.pool import InstancePool
from mesh.clock import SystemClock
from seedance.protocol.errors import ErrorCode
from seedance.protocol.request import GenerateRequest
from seedance.v2 import inference_pb2 as pb
from tests.support.fake_inference import running_instance
from tests.support.recording_listener import RecordingListener
from tests.support.service_process import running_service
from tests.support.tcp_proxy import running_proxy
from tests.support.waiting import wait_until

ANN = Where(user="ann")
OPEN = Open("s/a", 1, GenerateRequest(prompt="hi"), "tenant", traceparent="tp", credit=4)
DELAY_S = 0.3


@pytest.fixture(autouse=True)
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten pings a second instead of one, so that a test does not wait."""
    monkeypatch.setattr(link, "PING_EVERY_S", 0.1)


class _Watched:
    """A pool, and what its breakers did."""

    def __init__(self, *addresses: str) -> None:
        self.changes: list[tuple[str, BreakerState]] = []
        self.pool = InstancePool(
            StaticList(addresses),
            SystemClock(),
            on_breaker=lambda *change: self.changes.append(change),
        )

    def chosen(self) -> str:
        return self.pool.choose(ANN) if self.pool.ready() else ""

    def samples(self, instance: str) -> int:
        return len(self.pool._members[instance].breaker._samples)


@contextlib.asynccontextmanager
async def _watching(*addresses: str) -> AsyncIterator[_Watched]:
    watched = _Watched(*addresses)
    running = asyncio.create_task(watched.pool.run())
    try:
        await wait_until(lambda: len(watched.pool._usable_members()) == len(addresses), 10)
        await wait_until(
            lambda: all(watched.samples(i) >= SAMPLES_MIN for i in watched.pool._members)
        )
        yield watched
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.timeout(60)
async def test_a_stopped_instance_loses_new_streams_and_gets_them_back() -> None:
    """SIGSTOP: within a few pings the other one is chosen; after SIGCONT the first one again."""
    flags = ("--engine", "script", "--instance-id")
    async with (
        running_service("inference", *flags, "i0") as one,
        running_service("inference", *flags, "i1") as two,
        _watching(one.address, two.address) as watched,
    ):
        first = watched.chosen()
        victim = one if first == "i0" else two
        victim.send(signal.SIGSTOP)
        try:
            await wait_until(lambda: watched.chosen() != first, 10)
            assert watched.changes == [(first, BreakerState.OPEN)]
        finally:
            victim.send(signal.SIGCONT)
        await wait_until(lambda: watched.changes[-1] == (first, BreakerState.CLOSED), 10)
        assert watched.chosen() == first


async def test_a_late_instance_loses_new_streams_and_gets_them_back() -> None:
    """A link that slows down is left for another one, and used again when it is quick again."""
    async with (
        running_instance("i0") as one,
        running_instance("i1") as two,
        running_proxy(one.address) as before_one,
        running_proxy(two.address) as before_two,
        _watching(before_one.address, before_two.address) as watched,
    ):
        first = watched.chosen()
        proxy = before_one if first == "i0" else before_two
        proxy.delay_s = DELAY_S
        await wait_until(lambda: watched.chosen() != first, 10)
        proxy.delay_s = 0.0
        await wait_until(lambda: watched.changes[-1] == (first, BreakerState.CLOSED), 10)
        assert watched.chosen() == first


async def test_a_late_instance_is_better_than_none() -> None:
    """Where nobody else is there, an open breaker stops nothing."""
    async with (
        running_instance("i0") as one,
        running_proxy(one.address) as proxy,
        _watching(proxy.address) as watched,
    ):
        proxy.delay_s = DELAY_S
        await wait_until(lambda: ("i0", BreakerState.OPEN) in watched.changes, 10)
        assert watched.chosen() == "i0"


async def test_refusals_open_nothing() -> None:
    """An instance that says `overloaded` or `rate_limited` to every stream is not ill."""
    async with running_instance("i0") as one, _watching(one.address) as watched:
        listeners = [RecordingListener() for _ in range(20)]
        for listener in listeners:
            watched.pool.open("i0", OPEN, listener)
        call = await one.call()
        for number, stream_id in enumerate(await call.opened(count=20)):
            code = "overloaded" if number % 2 else "rate_limited"
            error = pb.ServerFrame(stream_id=stream_id, error=pb.Error(code=code, message="later"))
            call.send(pb.StreamResponse(frames=[error]))
        await wait_until(lambda: all(listener.error for listener in listeners))
        codes = {listener.error.code for listener in listeners if listener.error}
        assert codes == {ErrorCode.OVERLOADED, ErrorCode.RATE_LIMITED}
        await wait_until(lambda: watched.samples("i0") >= 2 * SAMPLES_MIN)
        assert watched.changes == []
