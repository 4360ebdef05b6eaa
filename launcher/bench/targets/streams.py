"""Streams of the cheap instance through a real gateway, or past it, and how late their tokens are."""

from __future__ import annotations

import asyncio
import contextlib
import os
from array import array
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.bench.fake_instance import TEXT_BYTES, made_ago_s
from launcher.bench.figures import cpu_s
from launcher.bench.hop import GATEWAY, hop_mesh
from launcher.bench.light_reader import LightReader
from launcher.bench.mesh import RunningMesh
from launcher.bench.reader import open_all, script_messages
from mesh.rpc.channel import open_channel
from seedance.v2 import inference_pb2 as pb
from seedance.v2.inference_pb2_grpc import InferenceStub

__all__ = ["Seen", "direct", "end", "gateway_mesh", "through_gateway"]

WARM_S, COOL_S = 1.5, 1.0
US_PER_S = 1_000_000
INSTANCE = "inference-0"


@dataclass(frozen=True, slots=True)
class Seen:
    """What came in `wall_s`; CPU is the gateway's; lateness in seconds, in the order of arrival."""

    tokens: int
    frames: int
    wall_s: float
    cpu_s: float
    late_s: array[float]

    @property
    def tokens_per_s(self) -> float:
        """What the clients got."""
        return self.tokens / self.wall_s

    @property
    def us_per_token(self) -> float:
        """The gateway's CPU time."""
        return self.cpu_s / self.tokens * US_PER_S

    @property
    def tokens_per_core_s(self) -> float:
        """What a gateway that has a core to itself carries, by its CPU time."""
        return self.tokens / self.cpu_s


@contextlib.contextmanager
def _beside_the_gateway() -> Iterator[None]:
    """The clients run where the gateway does not, as everything else of the mesh."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[1:] or cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.asynccontextmanager
async def gateway_mesh(data: Path, flags: tuple[str, ...] = ()) -> AsyncIterator[RunningMesh]:
    """One gateway with a core of its own (where there are two), and the cheap instance."""
    async with hop_mesh(data, flags) as mesh:
        with _beside_the_gateway():
            yield mesh


async def through_gateway(
    mesh: RunningMesh, streams: int, dt_ms: float, seconds: float, *, watch: bool = True
) -> Seen:
    """So many streams, each on a connection of its own; `watch`: note how late each frame is."""
    pid = mesh.pid(GATEWAY)
    assert pid is not None  # noqa: S101 - nobody kills it here
    readers = await open_all(LightReader, mesh.specs[GATEWAY].address, streams)
    for reader in readers:
        reader.ask(script_messages([b"x"], dt_ms=dt_ms, repeat=1))
    await asyncio.sleep(WARM_S)
    late: list[float] = []
    if watch:
        for reader in readers:
            reader.late_s = late
    loop = asyncio.get_running_loop()
    began, used = loop.time(), cpu_s(pid)
    tokens, frames = _tokens(readers), sum(reader.seq for reader in readers)
    await asyncio.sleep(seconds)
    seen = Seen(
        _tokens(readers) - tokens,
        sum(reader.seq for reader in readers) - frames,
        loop.time() - began,
        cpu_s(pid) - used,
        array("d", late),
    )
    await end(readers)
    return seen


async def end(readers: list[LightReader]) -> None:
    """End the sessions, and give the gateway a moment for it."""
    for reader in readers:
        reader.write({"type": "close"})
    await asyncio.sleep(COOL_S)
    for reader in readers:
        reader.cut()


def _tokens(readers: list[LightReader]) -> int:
    """What has come, by where the last frames' text begins."""
    return sum(reader.offset // TEXT_BYTES for reader in readers)


async def direct(mesh: RunningMesh, streams: int, dt_ms: float, seconds: float) -> array[float]:
    """The same streams on one call to the instance: how late each token is, in seconds."""
    late: array[float] = array("d")
    channel = open_channel(mesh.specs[INSTANCE].address)
    call = InferenceStub(channel).Stream()  # type: ignore[no-untyped-call]
    try:
        await call.write(pb.StreamRequest(frames=[_open(n, dt_ms) for n in range(1, streams + 1)]))
        loop = asyncio.get_running_loop()
        counts_from = loop.time() + WARM_S
        while loop.time() < counts_from + seconds:
            columns = (await call.read()).tokens
            if columns.text and loop.time() >= counts_from:
                lateness = made_ago_s(columns.text[:TEXT_BYTES])
                late.extend([lateness] * len(columns.stream_ids))
    finally:
        call.cancel()
        await channel.close()
    return late


def _open(number: int, dt_ms: float) -> pb.ClientFrame:
    messages = [
        pb.ChatMessage(**message) for message in script_messages([b"x"], dt_ms=dt_ms, repeat=1)
    ]
    request = pb.GenerateRequest(messages=messages)
    return pb.ClientFrame(
        stream_id=number, open=pb.Open(generation=f"direct/{number}", epoch=1, request=request)
    )
