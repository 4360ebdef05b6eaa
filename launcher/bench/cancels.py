"""How long a stream with `on_disconnect: cancel` outlives its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from launcher.bench.figures import Figure, percentile
from launcher.bench.mesh import running_mesh
from launcher.bench.reader import open_readers, script_messages
from launcher.blueprint import UpOptions
from launcher.ports import free_port
from mesh.rpc.channel import open_channel
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc

__all__ = ["cancels"]

DT_MS = 5.0
WITHIN_S = 5.0
# One engine step, which is below a millisecond with this engine but waits for the next token's
# time, and 20 ms.
GONE_WITHIN_S = (DT_MS + 20) / 1000


async def cancels(data: Path, count: int, step: Callable[[], None]) -> list[Figure]:
    """One client after the other is cut off; the instance is asked until the sequence is gone."""
    options = UpOptions(data=data, port=free_port(), gateways=1, instances=1, engine="script")
    took: list[float] = []
    loop = asyncio.get_running_loop()
    async with (
        running_mesh(options) as mesh,
        open_channel(mesh.specs["inference-0"].address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]

        async def load() -> pb.InstanceLoad:
            answer: pb.DescribeResponse = await stub.Describe(pb.DescribeRequest())
            return answer.load

        free = (await load()).free_blocks
        messages = script_messages([b"word "], dt_ms=DT_MS, repeat=10_000)
        for _ in range(count):
            [reader] = await open_readers(mesh.specs["gateway-0"].address, 1)
            reader.ask(messages, on_disconnect="cancel")
            async with asyncio.timeout(WITHIN_S):
                while not reader.tokens or not (await load()).running:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0)
            cut_at = loop.time()
            reader.cut()
            async with asyncio.timeout(WITHIN_S):
                while (now := await load()).running or now.free_blocks != free:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            took.append(loop.time() - cut_at)
            step()
    in_time = sum(each <= GONE_WITHIN_S for each in took)
    p50, p99 = percentile(took, 0.5) * 1000, percentile(took, 0.99) * 1000
    said = f"{in_time} of {count}; p50 {p50:.1f} ms, p99 {p99:.1f} ms, seen by asking the instance"
    target = f"{count} of {count} within a step ({DT_MS:g} ms) + 20 ms"
    return [
        Figure(
            "sequence gone and blocks free after `cancel`'s client", target, said, in_time == count
        )
    ]
