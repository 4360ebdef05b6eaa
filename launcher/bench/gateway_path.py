"""What a token costs inside a gateway: from an instance's message to the socket, without the socket.

Everything between the two system calls is the real thing: the shared call's columns, the session's
machine, its journal and commits into a store in memory, frames as JSON, and a client's
acknowledgements. What gRPC and the kernel take is not in it (`launcher.bench.hop` has that).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gateway.auth import Authenticator, Principal
from gateway.config import GatewaySettings
from gateway.deps import GatewayDeps
from gateway.metering.meter import UsageMeter
from gateway.session.registry import SessionRegistry
from gateway.store.memory import MemoryStore
from gateway.tickets import Tickets
from gateway.upstream.base import Attach, Open, PressureLevel, StreamHandle, StreamListener, Where
from gateway.upstream.streams import CallStreams
from gateway.websocket import Connection
from mesh.clock import SystemClock
from mesh.settings import load_settings
from mesh.telemetry.metrics import GatewayMetrics
from mesh.telemetry.tracing import Tracing
from seedance.v2 import inference_pb2 as pb

__all__ = ["ACK_EVERY", "TEXT", "OneInstance", "PathCase", "Sink", "seq_of"]

TEXT = b" quantum"
ACK_EVERY = 8


class OneInstance:
    """`Upstream` over one call that nobody carries."""

    def __init__(self) -> None:
        self.call = CallStreams("inference-0", lambda: None)

    def choose(self, where: Where) -> str:
        """The only one."""
        del where
        return "inference-0"

    def open(self, instance: str, spec: Open, listener: StreamListener) -> StreamHandle:
        """On the one call."""
        del instance
        return self.call.open(spec, listener)

    def attach(self, instance: str, spec: Attach, listener: StreamListener) -> StreamHandle:
        """No call breaks."""
        raise AssertionError("nothing breaks here", instance, spec, listener)

    def models(self) -> list[str]:
        """One."""
        return ["m"]

    def ready(self) -> bool:
        """Always."""
        return True

    def pressure(self) -> PressureLevel:
        """None."""
        return PressureLevel.NONE


class Sink:
    """A socket that counts what it is given."""

    piece_at: float | None = None
    close_timeout = 0.0
    idle = True

    def __init__(self) -> None:
        self.input_at = 0.0
        self.frames = 0
        self.last = ""
        self.on_writable: Any = None
        self.on_small: Any = None

    def send_text(self, text: str) -> None:
        """Count it, and keep the last one that has a number."""
        self.frames += 1
        if '"seq":' in text:
            self.last = text

    def send_bytes(self, data: bytes) -> None:
        """Not to a client that offered JSON."""
        raise AssertionError("this client offered JSON", data)

    def send_ping(self) -> None:
        """Nobody is silent."""

    def send_close(self, code: int, reason: str) -> None:
        """Nobody is closed."""
        raise AssertionError(f"closed with {code}: {reason}")

    async def give_way(self) -> None:
        """There is nobody else."""


def _deps() -> GatewayDeps:
    settings = load_settings(GatewaySettings, anonymous_tenant="local")
    clock = SystemClock()
    store = MemoryStore(clock, settings.resume_ttl_s)
    authenticator = Authenticator((), frozenset(), Tickets(store), anonymous_tenant="local")
    return GatewayDeps(
        settings,
        clock,
        store,
        OneInstance(),
        Tracing("gateway", "bench"),
        GatewayMetrics(),
        authenticator,
        UsageMeter(store, clock),
    )


class _GatewayPath:
    """So many sessions with one stream each; `turn` brings each stream tokens in a few messages."""

    def __init__(self, streams: int) -> None:
        self.deps = _deps()
        self.registry = SessionRegistry(self.deps)
        self.call: CallStreams = self.deps.upstream.call  # type: ignore[attr-defined]
        self.sinks = [Sink() for _ in range(streams)]
        self.connections = [self._connect(sink, n) for n, sink in enumerate(self.sinks)]
        self._tokens = 0
        self._bytes = 0
        self._unacknowledged = 0
        self._acked = [0] * streams

    def _connect(self, sink: Sink, number: int) -> Connection:
        connection = Connection(
            self.deps,
            self.registry,
            sink,
            Principal("local", f"user-{number}"),
            windowed=True,
            affinity=f"user-{number}",
        )
        connection.open()
        return connection

    async def begin(self) -> None:
        """Ask for a stream on each connection, and let the instance accept it."""
        self._commits = asyncio.create_task(self.registry.checkpointer.run())
        ask = json.dumps(
            {
                "type": "generate",
                "id": "s1",
                "messages": [{"role": "user", "content": "x"}],
                "max_tokens": 1_000_000,
            }
        )
        for connection in self.connections:
            await connection.on_message(ask)
        await asyncio.sleep(0.1)
        request = self.call.take_request()
        assert request is not None  # noqa: S101
        self.ids = [frame.stream_id for frame in request.frames if frame.HasField("open")]
        accepted = pb.Accepted(
            instance="inference-0",
            model="m",
            adopted_batch_size=1,
            token_quota=1_000_000,
            prompt_tokens=1,
        )
        frames = [pb.ServerFrame(stream_id=n, accepted=accepted) for n in self.ids]
        self.call.receive(pb.StreamResponse(frames=frames))
        await asyncio.sleep(0.1)

    def message(self, tokens: int) -> bytes:
        """The next message of the instance, as it comes off the wire."""
        count = len(self.ids)
        columns = pb.TokenColumns(
            stream_ids=self.ids,
            token_counts=[tokens] * count,
            byte_lengths=[tokens * len(TEXT)] * count,
            offsets=[self._bytes] * count,
            token_indexes=[self._tokens] * count,
            token_ids=[7] * (count * tokens),
            text=TEXT * (count * tokens),
            text_lengths=[len(TEXT)] * (count * tokens) if tokens > 1 else [],
            timestamp_ms=1_760_000_000_000,
        )
        self._tokens += tokens
        self._bytes += tokens * len(TEXT)
        return pb.StreamResponse(tokens=columns).SerializeToString()

    async def turn(self, messages: list[bytes]) -> None:
        """Everything that these messages make a gateway do in one round, acknowledgements included."""
        for message in messages:
            self.call.receive(pb.StreamResponse.FromString(message))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._unacknowledged += 1
        if self._unacknowledged >= ACK_EVERY:
            self._unacknowledged = 0
            for sink in self.sinks:
                ack = f'{{"type":"ack","seq":{seq_of(sink.last) + 1}}}'
                assert sink.on_small(ack.encode())  # noqa: S101 - else it measures another way
        self.call.take_request()

    def end(self) -> None:
        """Commit no more."""
        self._commits.cancel()
        self.registry.timers.close()


class PathCase:
    """A `Case`'s two halves: the messages are made ahead, and each stream gets `tokens` of each.

    `messages`: so many come before a round lets text leave, as they do with `--coalesce-ms`.
    """

    def __init__(self, streams: int, tokens: int, messages: int = 1) -> None:
        self._streams, self._tokens, self._per_round = streams, tokens, messages
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns_ahead: list[list[bytes]] = []

    def prepare(self, count: int) -> None:
        """Begin the streams, the first time, and make the next messages."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._path = self._loop.run_until_complete(self._begin())
        turns = max(1, count // (self._streams * self._tokens * self._per_round))
        message = self._path.message
        self._turns_ahead = [
            [message(self._tokens) for _ in range(self._per_round)] for _ in range(turns)
        ]

    async def _begin(self) -> _GatewayPath:
        path = _GatewayPath(self._streams)
        await path.begin()
        return path

    def run(self, _count: int) -> None:
        """Let the messages arrive one after the other."""
        assert self._loop is not None  # noqa: S101 - prepared
        self._loop.run_until_complete(self._turns())

    def finish(self) -> None:
        """Stop what runs beside it."""
        if self._loop is not None:
            self._path.end()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()
            self._loop = None

    async def _turns(self) -> None:
        for messages in self._turns_ahead:
            await self._path.turn(messages)


def seq_of(text: str) -> int:
    """The number of a frame."""
    digits = text.partition('"seq":')[2]
    return int(digits[: digits.index(",")])
