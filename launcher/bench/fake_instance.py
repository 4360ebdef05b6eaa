"""An instance that costs next to nothing: one message a step for all streams, as fast as credit allows.

python -m launcher.bench.fake_instance --port N

It speaks the shared call as ours do (§7): it takes what is opened, keeps to each stream's credit and
ends what is cancelled. Each token's text is eight bytes and says when it was made (`made_at`), so that
whoever gets it knows how long it was under way. A request's text is the script engine's: `dt_ms` is
the time between two steps.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer
import uvloop

from mesh.rpc.server import RpcServer
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc

__all__ = ["INSTANCE", "MODEL", "TEXT_BYTES", "made_ago_s", "main"]

INSTANCE, MODEL = "inference-0", "script"
SERVICE_NAME = "seedance.v2.Inference"
TOKEN_QUOTA = 10_000_000
TEXT_BYTES = 8
# The text is a space and so many microseconds of the machine's monotonic clock, modulo ten seconds.
_WRAP_US = 10_000_000
_US, _MS = 1_000_000, 1_000


def _now_text() -> bytes:
    return b" %07d" % (time.monotonic_ns() // _MS % _WRAP_US)


def made_ago_s(text: bytes) -> float:
    """How long ago the token with this text was made, on this machine; at most ten seconds."""
    return (time.monotonic_ns() // _MS - int(text)) % _WRAP_US / _US


@dataclass(slots=True)
class _Stream:
    credit: int
    dt_s: float
    tokens: int = 0


class _Call:
    """The streams of one call, and when the next step is due."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self._streams: dict[int, _Stream] = {}
        self._said: list[pb.ServerFrame] = []
        self._due_at = 0.0

    def hear(self, request: pb.StreamRequest) -> None:
        """What the gateway asks."""
        for frame in request.frames:
            kind, stream_id = frame.WhichOneof("frame"), frame.stream_id
            if kind == "open":
                self._open(stream_id, frame.open)
            elif kind == "credit" and stream_id in self._streams:
                self._streams[stream_id].credit += frame.credit.tokens
            elif kind == "cancel" and self._streams.pop(stream_id, None):
                done = pb.Done(finish_reason=pb.FINISH_REASON_CANCELLED, usage=pb.Usage())
                self._said.append(pb.ServerFrame(stream_id=stream_id, done=done))
        self.wake.set()

    def _open(self, stream_id: int, asked: pb.Open) -> None:
        script: dict[str, Any] = json.loads(asked.request.messages[0].content)
        credit = asked.credit if asked.HasField("credit") else TOKEN_QUOTA
        self._streams[stream_id] = _Stream(credit, script["dt_ms"] / _MS)
        accepted = pb.Accepted(
            instance=INSTANCE,
            model=MODEL,
            adopted_batch_size=1,
            token_quota=TOKEN_QUOTA,
            prompt_tokens=1,
        )
        self._said.append(pb.ServerFrame(stream_id=stream_id, accepted=accepted))

    async def until_due(self) -> None:
        """Return when something may be said; a step's time counts from the one before."""
        while not (self._said or any(s.credit for s in self._streams.values())):
            self.wake.clear()
            await self.wake.wait()
        dt_s = max((stream.dt_s for stream in self._streams.values()), default=0.0)
        now = time.monotonic()
        self._due_at = max(self._due_at + dt_s, now) if dt_s else now
        await asyncio.sleep(self._due_at - now)

    def step(self) -> pb.StreamResponse:
        """A token for each stream that has credit."""
        said, self._said = self._said, []
        ready = [(n, stream) for n, stream in self._streams.items() if stream.credit > 0]
        for _, stream in ready:
            stream.credit -= 1
            stream.tokens += 1
        count = len(ready)
        columns = pb.TokenColumns(
            stream_ids=[n for n, _ in ready],
            token_counts=[1] * count,
            byte_lengths=[TEXT_BYTES] * count,
            offsets=[(stream.tokens - 1) * TEXT_BYTES for _, stream in ready],
            token_ids=[7] * count,
            text=_now_text() * count,
            token_indexes=[stream.tokens - 1 for _, stream in ready],
            timestamp_ms=time.time_ns() // (_MS * _MS),
        )
        return pb.StreamResponse(frames=said, tokens=columns)


class _FakeInstance(inference_pb2_grpc.InferenceServicer):
    async def Describe(  # noqa: N802 - the contract's name
        self, _request: pb.DescribeRequest, _context: object
    ) -> pb.DescribeResponse:
        return pb.DescribeResponse(instance=INSTANCE, model=MODEL)

    async def Stream(  # noqa: N802 - the contract's name
        self, requests: AsyncIterator[pb.StreamRequest], _context: object
    ) -> AsyncIterator[pb.StreamResponse]:
        call = _Call()
        hearing = asyncio.create_task(_hear(call, requests))
        try:
            while True:
                await call.until_due()
                yield call.step()
        finally:
            hearing.cancel()


async def _hear(call: _Call, requests: AsyncIterator[pb.StreamRequest]) -> None:
    async for request in requests:
        call.hear(request)


async def _serve(address: str) -> None:
    server = RpcServer([SERVICE_NAME])
    inference_pb2_grpc.add_InferenceServicer_to_server(_FakeInstance(), server.server)  # type: ignore[no-untyped-call]
    await server.start(address)
    await server.server.wait_for_termination()


def main(port: Annotated[int, typer.Option(min=0, max=65535)]) -> None:
    """Serve on 127.0.0.1 until ended."""
    uvloop.run(_serve(f"127.0.0.1:{port}"))


if __name__ == "__main__":
    typer.run(main)
