"""A link's pings: their pace, what they count as, and when streams leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from gateway.upstream import link
from gateway.upstream.base import Open
from gateway.upstream.breaker import Breaker, BreakerState
from gateway.upstream.link import OWN_DELAY_S, SILENT_PINGS, Link
from mesh.clock import SystemClock
from seedance.protocol.request import GenerateRequest
from seedance.v2 import inference_pb2 as pb
from tests.support.recording_listener import RecordingListener

NOTHING = grpc.aio.Metadata()
TIMED_OUT = grpc.StatusCode.DEADLINE_EXCEEDED
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


class _Channel:
    """Answers each health check by what `answer` says: a status, or a code to fail with."""

    def __init__(self, answer: Callable[[], int | grpc.StatusCode]) -> None:
        self.calls = 0
        self._answer = answer

    def unary_unary(self, *_args: Any, **_more: Any) -> Any:
        return self._check

    unary_stream = unary_unary

    async def _check(self, *_args: Any, **_more: Any) -> Any:
        self.calls += 1
        said = self._answer()
        if isinstance(said, grpc.StatusCode):
            raise grpc.aio.AioRpcError(said, NOTHING, NOTHING)
        return health_pb2.HealthCheckResponse(status=said)


class _Clock(SystemClock):
    """The system's, set forward by a test."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class _World:
    """A link, its breaker's changes, and whether another instance could take its streams."""

    def __init__(self) -> None:
        self.clock = _Clock()
        self.changes: list[BreakerState] = []
        self.breaker = Breaker(lambda: 0.0, self.changes.append)
        self.others = True
        self.link = Link(
            "i0", "nowhere", (), self.clock, self.breaker, lambda: None, lambda: self.others
        )

    async def watch(self, channel: _Channel, seconds: float = 1.0) -> bool:
        """Ping for so long; whether the link had enough of it before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.link._watch(channel)  # type: ignore[arg-type]
                return True
        return False

    def stream(self, *, accepted: bool = True) -> RecordingListener:
        """A stream of the link's call."""
        listener = RecordingListener()
        handle = self.link.open(Open("s/a", 1, GenerateRequest(prompt="x"), "t"), listener)
        if accepted:
            frame = pb.ServerFrame(stream_id=handle.stream_id, accepted=pb.Accepted())
            self.link._call._streams.receive(pb.StreamResponse(frames=[frame]))
        return listener


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> _World:
    """Pings every 10 ms, given up at once."""
    for name in ("PING_EVERY_S", "PING_TIMEOUT_S", "SILENT_PING_TIMEOUT_S", "PORTION_EVERY_S"):
        monkeypatch.setattr(link, name, 0.01)
    return _World()


async def test_pings_that_fail_at_once_keep_their_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is going away does not spin the loop, nor open a breaker within a millisecond."""
    monkeypatch.setattr(link, "PING_EVERY_S", 0.05)
    world, channel = _World(), _Channel(lambda: grpc.StatusCode.UNAVAILABLE)
    assert not await world.watch(channel, 0.12)
    assert 1 <= channel.calls <= 2
    assert world.changes == []


async def test_three_pings_without_an_answer_are_silence(world: _World) -> None:
    """Then its streams leave, and its breaker is open."""
    channel = _Channel(lambda: TIMED_OUT)
    assert await world.watch(channel)
    assert channel.calls == SILENT_PINGS
    assert world.changes == [BreakerState.OPEN]


async def test_who_cannot_be_replaced_is_waited_for(world: _World) -> None:
    """Nothing leaves while nobody else could take it; as soon as somebody can, it does."""
    world.others = False
    channel = _Channel(lambda: TIMED_OUT)
    assert not await world.watch(channel, 0.2)
    assert channel.calls > SILENT_PINGS
    world.others = True
    assert await world.watch(channel)


async def test_an_error_is_an_answer(world: _World) -> None:
    """Whoever says that it does not know the health service is neither silent nor ill."""
    channel = _Channel(lambda: grpc.StatusCode.UNIMPLEMENTED)
    assert not await world.watch(channel, 0.2)
    assert channel.calls > SILENT_PINGS
    assert world.changes == []


async def test_tokens_are_a_sign_of_life(world: _World) -> None:
    """An instance whose call still brings something is late, not silent."""

    def heard_meanwhile() -> grpc.StatusCode:
        world.link._call.heard += 1
        return TIMED_OUT

    assert not await world.watch(_Channel(heard_meanwhile), 0.2)
    assert world.changes == [BreakerState.OPEN]


async def test_a_gateway_that_stood_still_blames_nobody(world: _World) -> None:
    """A time-out that is noticed far too late says something about this process alone."""

    def stopped_meanwhile() -> grpc.StatusCode:
        world.clock.ahead_s += 2 * OWN_DELAY_S
        return TIMED_OUT

    assert not await world.watch(_Channel(stopped_meanwhile), 0.2)
    assert world.changes == []


async def test_who_drains_hands_its_streams_over_in_portions(world: _World) -> None:
    """Each hears of a break once and is forgotten there; what is not accepted yet stays."""
    streams = [world.stream() for _ in range(3 * link.PORTIONS)]
    opening = world.stream(accepted=False)
    left: list[int] = []

    def draining() -> int:
        left.append(world.link.load)
        return int(NOT_SERVING)

    assert not await world.watch(_Channel(draining), 0.6)
    assert world.link.load == 1
    assert left[1] > len(streams) // 2, "not all at once"
    assert all(listener.heard == ["accepted", "broken"] for listener in streams)
    assert opening.heard == []
    request = world.link._call._streams.take_request()
    assert request is not None
    kinds = [frame.WhichOneof("frame") for frame in request.frames]
    assert kinds.count("cancel") == kinds.count("release") == len(streams)


async def test_who_drains_alone_keeps_its_streams(world: _World) -> None:
    """Nobody could take them: they end where they are, as its grace allows."""
    world.others = False
    listener = world.stream()
    assert not await world.watch(_Channel(lambda: int(NOT_SERVING)), 0.1)
    assert listener.heard == ["accepted"]
    assert world.link.load == 1


async def test_who_serves_keeps_its_streams(world: _World) -> None:
    """The usual answer moves nothing."""
    listener = world.stream()
    assert not await world.watch(_Channel(lambda: int(SERVING)), 0.1)
    assert listener.heard == ["accepted"]
