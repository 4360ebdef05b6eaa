"""A connection to one instance: probed, then used by one shared call and pinged, then probed again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.upstream.backoff import Backoff
from gateway.upstream.base import Attach, Open, PressureLevel, StreamListener
from gateway.upstream.breaker import Breaker
from gateway.upstream.call import Metadata, SharedCall
from gateway.upstream.streams import Handle
from mesh.clock import Clock
from mesh.rpc.channel import Dial, open_channel

__all__ = ["Link", "LinkState"]

PROBE_TIMEOUT_S = 2.0
# A connection that did not live this long does not count as recovery.
STABLE_S = 5.0
# The round trips that the breaker judges; an instance that is stopped is out after three of them.
PING_EVERY_S = 1.0
PING_TIMEOUT_S = 1.0


class LinkState(Enum):
    """A link's life."""

    PROBING = "probing"  # not usable: connecting, or waiting to
    READY = "ready"
    CLOSED = "closed"


_NEXT = {
    LinkState.PROBING: {LinkState.READY, LinkState.CLOSED},
    LinkState.READY: {LinkState.PROBING, LinkState.CLOSED},
    LinkState.CLOSED: set[LinkState](),
}


class Link:
    """One connection. `run` probes, serves and reconnects until it is cancelled.

    `on_change` is called after each change of state; `breaker` hears of pings and broken calls.
    """

    def __init__(
        self,
        instance: str,
        address: str,
        metadata: Metadata,
        clock: Clock,
        breaker: Breaker,
        on_change: Callable[[], None],
        dial: Dial = open_channel,
    ) -> None:
        self.address = address
        self._instance = instance
        self._metadata = metadata
        self._clock = clock
        self._breaker = breaker
        self._on_change = on_change
        self._dial = dial
        self._state = LinkState.PROBING
        self._call = SharedCall(instance)

    @property
    def ready(self) -> bool:
        """Whether streams can be opened."""
        return self._state is LinkState.READY

    @property
    def load(self) -> int:
        """Live streams."""
        return self._call.load

    @property
    def pressure(self) -> PressureLevel:
        """What the instance asked for last."""
        return self._call.pressure

    def open(self, spec: Open | Attach, listener: StreamListener) -> Handle:
        """Add a stream. Raises `SeedanceError` (`overloaded`)."""
        return self._call.open(spec, listener)

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        backoff = Backoff()
        try:
            while True:
                started = self._clock.monotonic()
                async with self._dial(self.address) as channel:
                    if await self._probe(channel):
                        await self._serve(channel)
                if self._clock.monotonic() - started > STABLE_S:
                    backoff.reset()
                await backoff.wait()
        finally:
            self._become(LinkState.CLOSED)

    async def _probe(self, channel: grpc.aio.Channel) -> bool:
        """Whether the instance answers and says that it serves."""
        try:
            status = await _check(channel, PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(status == health_pb2.HealthCheckResponse.SERVING)

    async def _serve(self, channel: grpc.aio.Channel) -> None:
        self._become(LinkState.READY)
        try:
            async with asyncio.TaskGroup() as tasks:
                pinging = tasks.create_task(self._ping(channel))
                await self._call.run(channel, self._metadata)
                pinging.cancel()
            self._breaker.broken(self._clock.monotonic())
        finally:
            # Out of choice first: a stream that hears of the break looks for an instance at once.
            self._become(LinkState.PROBING)
            broken, self._call = self._call, SharedCall(self._instance)
            broken.break_streams()

    async def _ping(self, channel: grpc.aio.Channel) -> None:
        """Measure the round trip for ever; whatever the instance says, it has answered."""
        wait_s = PING_EVERY_S
        while True:
            await asyncio.sleep(wait_s)
            started = self._clock.monotonic()
            try:
                await _check(channel, PING_TIMEOUT_S)
                answered = True
            except grpc.aio.AioRpcError:
                answered = False
            now = self._clock.monotonic()
            # The next one is due by the last one's beginning: a ping that timed out is followed at
            # once, one that failed at once is not.
            wait_s = max(0.0, started + PING_EVERY_S - now)
            self._breaker.sample(now - started if answered else None, now)

    def _become(self, state: LinkState) -> None:
        assert state in _NEXT[self._state], (self._state, state)  # noqa: S101 - our own bug
        self._state = state
        self._on_change()


async def _check(channel: grpc.aio.Channel, timeout_s: float) -> int:
    """What the instance says of its health. Raises `AioRpcError` when it does not answer in time."""
    answer = await health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True
    )
    return int(answer.status)
