"""A connection to one instance: probed, then used by one shared call and pinged, then probed again.

The pings also say when an instance's streams had better run elsewhere: it has fallen silent (stopped,
or cut off without a word), or it drains. Nothing is moved while nobody else could take it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from enum import Enum

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.upstream.backoff import Backoff
from gateway.upstream.base import Attach, Open, PressureLevel, StreamListener
from gateway.upstream.breaker import Breaker
from gateway.upstream.call import SharedCall
from gateway.upstream.streams import Handle
from mesh.clock import Clock
from mesh.rpc.channel import Dial, open_channel
from mesh.rpc.secret import Metadata

__all__ = ["Link", "LinkState"]

_log = logging.getLogger("gateway.upstream")

PROBE_TIMEOUT_S = 2.0
# A connection that did not live this long does not count as recovery.
STABLE_S = 5.0
# The round trips that the breaker judges.
PING_EVERY_S = 1.0
PING_TIMEOUT_S = 1.0
# So many pings in a row without an answer, nor anything else that was heard meanwhile, are silence. The
# second and third follow at once, and so it lasts two seconds; longer where round trips are long.
SILENT_PINGS = 3
SILENT_PING_TIMEOUT_S = 0.5
# A time-out that is noticed so late was ours: this process stood still, and the ping says nothing.
OWN_DELAY_S = 0.25
# The streams of an instance that drains move in so many portions: whoever takes them computes their
# prompts anew, a few at a time, and streams that are nearly through end where they are.
PORTIONS = 20
PORTION_EVERY_S = 0.1

# Of a health check: said here, and not by the other end.
_UNHEARD = frozenset(
    {
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
    }
)


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

    `on_change` is called after each change of state; `breaker` hears of pings and broken calls;
    `replaceable` says whether another instance could take the streams of this one now.
    """

    def __init__(
        self,
        instance: str,
        address: str,
        metadata: Metadata,
        clock: Clock,
        breaker: Breaker,
        on_change: Callable[[], None],
        replaceable: Callable[[], bool] = lambda: False,
        dial: Dial = open_channel,
    ) -> None:
        self.address = address
        self._instance = instance
        self._metadata = metadata
        self._clock = clock
        self._breaker = breaker
        self._on_change = on_change
        self._replaceable = replaceable
        self._dial = dial
        self._state = LinkState.PROBING
        self._unanswered = 0
        self._call = SharedCall(instance)

    @property
    def ready(self) -> bool:
        """Whether streams can be opened."""
        return self._state is LinkState.READY

    @property
    def answers(self) -> bool:
        """Whether streams can be opened, and the last ping was answered."""
        return self.ready and not self._unanswered

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
        status = await _check(channel, PROBE_TIMEOUT_S)
        return bool(status == health_pb2.HealthCheckResponse.SERVING)

    async def _serve(self, channel: grpc.aio.Channel) -> None:
        self._unanswered = 0
        self._become(LinkState.READY)
        try:
            async with asyncio.TaskGroup() as tasks:
                calling = tasks.create_task(self._call.run(channel, self._metadata))
                watching = tasks.create_task(self._watch(channel))
                await asyncio.wait((calling, watching), return_when=asyncio.FIRST_COMPLETED)
                calling.cancel()
                watching.cancel()
            self._breaker.broken(self._clock.monotonic())
        finally:
            # Out of choice first: a stream that hears of the break looks for an instance at once.
            self._become(LinkState.PROBING)
            broken, self._call = self._call, SharedCall(self._instance)
            broken.break_streams()

    async def _watch(self, channel: grpc.aio.Channel) -> None:
        """Ping; returns when the instance is silent and its streams can run elsewhere."""
        portions, wait_s = PORTIONS, PING_EVERY_S
        while self._unanswered < SILENT_PINGS or not self._replaceable():
            await asyncio.sleep(wait_s)
            serves, wait_s = await self._ping(channel)
            if not serves and self._replaceable():
                self._call.hand_over(math.ceil(self._call.load / portions))
                portions, wait_s = max(1, portions - 1), PORTION_EVERY_S
        _log.warning("%s is silent: its %d streams go on elsewhere", self._instance, self.load)

    async def _ping(self, channel: grpc.aio.Channel) -> tuple[bool, float]:
        """Whether the instance serves, as far as is known, and when to ask again."""
        timeout_s = PING_TIMEOUT_S
        if self._unanswered:
            timeout_s = min(timeout_s, max(SILENT_PING_TIMEOUT_S, self._breaker.suspect_above_s))
        heard = self._call.heard
        started = self._clock.monotonic()
        status = await _check(channel, timeout_s)
        now = self._clock.monotonic()
        took = now - started
        if status is not None or self._call.heard != heard:
            self._unanswered = 0
        elif took < timeout_s + OWN_DELAY_S:
            self._unanswered += 1
        if status is not None or took < timeout_s + OWN_DELAY_S:
            self._breaker.sample(None if status is None else took, now)
        # The next one is due by this one's beginning: one that timed out is followed at once, one
        # that failed at once is not.
        wait_s = max(0.0, (timeout_s if self._unanswered else PING_EVERY_S) - took)
        return status != health_pb2.HealthCheckResponse.NOT_SERVING, wait_s

    def _become(self, state: LinkState) -> None:
        assert state in _NEXT[self._state], (self._state, state)  # noqa: S101 - our own bug
        self._state = state
        self._on_change()


async def _check(channel: grpc.aio.Channel, timeout_s: float) -> int | None:
    """What the instance says of its health, `UNKNOWN` for an error of its own; None: nothing in time."""
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True
        )
    except grpc.aio.AioRpcError as error:
        return None if error.code() in _UNHEARD else health_pb2.HealthCheckResponse.UNKNOWN
    return int(answer.status)
