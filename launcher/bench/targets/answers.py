"""Whole answers through a gateway in this process, with this or that of it left out.

From the client's request to the acknowledgement of `done`, as `launcher.bench.gateway_path` has the
tokens between: what is paid per request (spans, bills, openings) counts, too. Time is the process's
CPU time. The sessions' own time is that of a gateway which has a core to itself and 10 µs for a token, so
that the same is done in each round, acknowledged and committed alike, however slow the machine is.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.auth import Authenticator, Principal
from gateway.config import GatewaySettings
from gateway.deps import GatewayDeps
from gateway.metering.meter import UsageMeter
from gateway.session.checkpoint import Checkpointer
from gateway.session.registry import SessionRegistry
from gateway.store.base import SessionStore, UsageEvent
from gateway.store.memory import MemoryStore
from gateway.tickets import Tickets
from gateway.upstream.streams import CallStreams
from gateway.websocket import Connection
from launcher.bench.gateway_path import ACK_EVERY, TEXT, OneInstance, Sink, seq_of
from mesh.settings import load_settings
from mesh.telemetry.metrics import GatewayMetrics
from mesh.telemetry.names import Span
from mesh.telemetry.tracing import Attributes, SpanHandle, Tracing
from seedance.v2 import inference_pb2 as pb

__all__ = [
    "ANSWER_TOKENS",
    "SESSIONS",
    "AnswersPath",
    "NoMeter",
    "NoTracing",
    "PacedClock",
    "in_turns",
]

SESSIONS, ANSWER_TOKENS = 64, 256
_INSTANCE, _MODEL = "inference-0", "m"
US_PER_S = 1_000_000
_TOKEN_S = 10e-6
# The loop's turns until what was asked for has been done.
_TURNS = 4


class PacedClock:
    """Goes on by what tokens take of a core, whoever else uses it: no timer fires for slowness."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def wall_ms(self) -> int:
        """The same in milliseconds."""
        return round(self.now * 1_000)


class NoTracing(Tracing):
    """No spans at all, and no trace ids."""

    def __init__(self) -> None:
        super().__init__("gateway", "bench")
        self._one = super().start(Span.GENERATE)

    def start(self, *_: object, **__: object) -> SpanHandle:
        """Always the same one."""
        return _Silent(self._one)


class _Silent(SpanHandle):
    """A span that nothing is written on."""

    def __init__(self, like: SpanHandle) -> None:
        self.traceparent = like.traceparent

    def set(self, attributes: Attributes) -> None:
        """Nowhere."""

    def end(self, *, error: str | None = None, end_ns: int | None = None) -> None:
        """It never began."""


class NoMeter(UsageMeter):
    """Takes no events."""

    def add(self, event: UsageEvent) -> None:
        """Not taken."""

    def hold(self, event: UsageEvent) -> None:
        """Not held."""

    def told(self, events: Iterable[UsageEvent]) -> None:
        """Nor told."""

    def drop(self, names: Iterable[str]) -> None:
        """Nor dropped."""

    def request(
        self, tenant: str, outcome: str = "asked", *, name: str = "", idempotency_id: str = ""
    ) -> None:
        """Not counted."""


class _NoCheckpoints(Checkpointer):
    """What waits for the store is told that it is there; `spent_s`: what that took."""

    spent_s = 0.0

    async def tick(self) -> None:
        """Nothing is written."""

    async def commit(self) -> None:
        """As if everything were."""
        began = time.process_time()
        self._dirty.update(dict.fromkeys(self.turns.take_all()))
        for owner, write in self._take():
            owner.stored(write)
        self.spent_s += time.process_time() - began


def _deps(
    store: SessionStore | None, tracing: Tracing, clock: PacedClock, *, metered: bool
) -> GatewayDeps:
    settings = load_settings(GatewaySettings, anonymous_tenant="local")
    store = store or MemoryStore(clock, settings.resume_ttl_s)
    return GatewayDeps(
        settings,
        clock,
        store,
        OneInstance(),
        tracing,
        GatewayMetrics(),
        Authenticator((), frozenset(), Tickets(store), anonymous_tenant="local"),
        (UsageMeter if metered else NoMeter)(store, clock),
    )


@dataclass
class AnswersPath:
    """A gateway whose sessions ask once in each `round`; `us_per_token` of the rounds.

    `store`: None: one in memory. `checkpoints` off: nothing is ever written to it.
    """

    name: str
    tracing: Tracing
    store: SessionStore | None = None
    metered: bool = True
    checkpoints: bool = True
    sessions: int = SESSIONS
    answer_tokens: int = ANSWER_TOKENS
    us_per_token: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Connect the clients; to be called where the loop runs."""
        self._clock = PacedClock()
        self._deps = _deps(self.store, self.tracing, self._clock, metered=self.metered)
        self._registry = SessionRegistry(self._deps)
        if not self.checkpoints:
            self._registry.checkpointer = _NoCheckpoints(
                self._deps.store, self._deps.usage, self._deps.clock, self.tracing, 1.0, 1.0
            )
        self._sinks = [Sink() for _ in range(self.sessions)]
        self._connections = [self._connect(sink, n) for n, sink in enumerate(self._sinks)]
        self._answers = 0
        self._commit_s = self._deps.settings.commit_interval_ms / 1_000
        self._commit_at = 0.0

    def _connect(self, sink: Sink, number: int) -> Connection:
        user = f"user-{number}"
        connection = Connection(
            self._deps,
            self._registry,
            sink,
            Principal("local", user),
            windowed=True,
            affinity=user,
        )
        connection.open()
        return connection

    async def round(self, *, warm: bool = False) -> None:
        """An answer on each session."""
        self._answers += 1
        ids = range((self._answers - 1) * self.sessions + 1, self._answers * self.sessions + 1)
        messages = [self._message(ids, index) for index in range(self.answer_tokens)]
        checkpointer = self._registry.checkpointer
        free = checkpointer.spent_s if isinstance(checkpointer, _NoCheckpoints) else 0.0
        began = time.process_time()
        await self._ask()
        for index, message in enumerate(messages):
            await self._hear(message)
            if (index + 1) % ACK_EVERY == 0:
                self._acknowledge()
        await self._end(ids)
        spent = time.process_time() - began
        if isinstance(checkpointer, _NoCheckpoints):
            spent -= checkpointer.spent_s - free
        if not warm:
            self.us_per_token.append(spent / (self.sessions * self.answer_tokens) * US_PER_S)

    async def _ask(self) -> None:
        ask = json.dumps(
            {
                "type": "generate",
                "id": f"s{self._answers}",
                "messages": [{"role": "user", "content": "x"}],
                "max_tokens": self.answer_tokens,
            }
        )
        for connection in self._connections:
            await connection.on_message(ask)
        await self._turn()
        await self._registry.checkpointer.commit()
        request = self._call.take_request()
        assert request is not None  # noqa: S101 - they have asked
        accepted = pb.Accepted(
            instance=_INSTANCE,
            model=_MODEL,
            adopted_batch_size=self.sessions,
            token_quota=self.answer_tokens,
            prompt_tokens=1,
        )
        opened = [f.stream_id for f in request.frames if f.HasField("open")]
        frames = [pb.ServerFrame(stream_id=number, accepted=accepted) for number in opened]
        self._call.receive(pb.StreamResponse(frames=frames))
        await self._turn()
        await self._registry.checkpointer.commit()

    @property
    def _call(self) -> CallStreams:
        upstream = self._deps.upstream
        assert isinstance(upstream, OneInstance)  # noqa: S101 - it was made here
        return upstream.call

    async def _hear(self, message: bytes) -> None:
        self._call.receive(pb.StreamResponse.FromString(message))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._call.take_request()
        self._clock.now += self.sessions * _TOKEN_S
        if self._clock.now >= self._commit_at:
            self._commit_at = self._clock.now + self._commit_s
            await self._registry.checkpointer.tick()

    async def _end(self, ids: range) -> None:
        done = pb.Done(
            finish_reason=pb.FINISH_REASON_LENGTH,
            usage=pb.Usage(prompt_tokens=1, completion_tokens=self.answer_tokens),
        )
        frames = [pb.ServerFrame(stream_id=number, done=done) for number in ids]
        self._call.receive(pb.StreamResponse(frames=frames))
        await self._turn()
        await self._registry.checkpointer.commit()
        self._acknowledge()
        self._call.take_request()
        for sink in self._sinks:
            assert '"done"' in sink.last, sink.last  # noqa: S101 - else it measures something else

    @staticmethod
    async def _turn() -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def _acknowledge(self) -> None:
        for sink in self._sinks:
            ack = f'{{"type":"ack","seq":{seq_of(sink.last) + 1}}}'
            assert sink.on_small(ack.encode())  # noqa: S101 - else it measures another way

    def _message(self, ids: range, index: int) -> bytes:
        count = len(ids)
        columns = pb.TokenColumns(
            stream_ids=ids,
            token_counts=[1] * count,
            byte_lengths=[len(TEXT)] * count,
            offsets=[index * len(TEXT)] * count,
            token_indexes=[index] * count,
            token_ids=[7] * count,
            text=TEXT * count,
            timestamp_ms=1_760_000_000_000,
        )
        return pb.StreamResponse(tokens=columns).SerializeToString()

    async def close(self) -> None:
        """Give back what was taken."""
        self._registry.timers.close()
        await self._deps.store.close()
        self.tracing.close()


async def in_turns(paths: list[AnswersPath], rounds: int) -> None:
    """So many rounds of each, one after the other, so that all see the same machine."""
    for path in paths:
        path.begin()
        await path.round(warm=True)
    for _ in range(rounds):
        for path in paths:
            await path.round()
