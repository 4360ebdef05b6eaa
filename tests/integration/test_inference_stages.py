"""What an instance answers over gRPC while its model computes a long step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from inference.engine.plan import Sampled, StepPlan
from inference.engine.runner import Prepared
from mesh.rpc.convert import request_to_pb
from seedance.protocol.request import GenerateRequest
from seedance.v2 import inference_pb2 as pb
from tests.support.fake_runner import FakeRunner, fake_info
from tests.support.instance import Caller, calling, running_instance
from tests.support.waiting import wait_until

STEP_S = 1.0
# The contract's figure is 3 ms; a loaded machine that runs tests is given more, but far less than
# the rest of the step.
SOON_S = 0.5


class _LongSteps(FakeRunner):
    """Each step takes a second, without the interpreter's lock."""

    def run(self, plan: StepPlan) -> list[Sampled]:
        """Compute, slowly."""
        time.sleep(STEP_S)
        return super().run(plan)


class _Letters:
    """Reads a prompt's bytes as tokens."""

    def prepare(self, request: GenerateRequest) -> Prepared:
        """Tokenize."""
        return Prepared(list(request.prompt.encode()), lambda token: bytes([token % 128]))


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    """A caller of an instance that runs one stream at a time, with stream 1 in its second step."""
    parts = (_LongSteps(fake_info()), _Letters())
    bounds = {"batch_max": 1, "queue_max": 4}
    async with (
        running_instance(parts=parts, **bounds) as instance,
        calling(instance.address) as call,
    ):
        caller = call()
        await caller.send(_open(1))
        await caller.until(lambda: caller.streams[1].ids)
        yield caller


def _open(stream: int) -> pb.ClientFrame:
    request = request_to_pb(GenerateRequest(prompt="x", max_tokens=100))
    return pb.ClientFrame(stream_id=stream, open=pb.Open(request=request, generation=f"s/{stream}"))


async def _soon(caller: Caller, read: object) -> None:
    async with asyncio.timeout(SOON_S):
        await wait_until(read)  # type: ignore[arg-type]
    assert len(caller.streams[1].ids) == 1, "the step has ended meanwhile"


async def test_pressure_does_not_wait_for_the_step(caller: Caller) -> None:
    """A queue that has just filled up is told at once, and those in it are accepted."""
    await caller.send(*[_open(stream) for stream in range(2, 6)])
    # They are tokenized one by one: the queue may be half full for a moment.
    pause = pb.PRESSURE_LEVEL_PAUSE
    await _soon(caller, lambda: caller.pressures and caller.pressures[-1].level == pause)
    assert caller.pressures[-1].queue_depth == 4
    await _soon(caller, lambda: all(caller.streams[stream].accepted for stream in range(2, 6)))


async def test_a_cancellation_does_not_wait_for_the_step(caller: Caller) -> None:
    """CASES 26: its end is told, and its blocks are free, within the step that it was part of."""
    await caller.send(pb.ClientFrame(stream_id=1, cancel=pb.Cancel()))
    await _soon(caller, lambda: caller.streams[1].done)
    assert caller.streams[1].done.finish_reason == pb.FINISH_REASON_CANCELLED
    assert caller.streams[1].done.usage.completion_tokens == 1
