"""The instance over real gRPC on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from inference.instance import Instance
from mesh.rpc.channel import open_channel
from mesh.rpc.convert import request_to_pb
from seedance.protocol.request import Sampling
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc
from tests.support.engine_driver import script_request
from tests.support.instance import calling, eventually, running_instance
from tests.support.scripts import script
from tests.support.waiting import wait_until

TOKENS = [b"a", b"\xf0\x9f", b"\x98\x81", b"."]
TEXT = "a😁.".encode()


@pytest.fixture
async def instance() -> AsyncIterator[Instance]:
    async with running_instance() as running:
        yield running


def _cancel(stream: int) -> pb.ClientFrame:
    return pb.ClientFrame(stream_id=stream, cancel=pb.Cancel())


def _credit(stream: int, tokens: int) -> pb.ClientFrame:
    return pb.ClientFrame(stream_id=stream, credit=pb.Credit(tokens=tokens))


def _attach(stream: int, generation: str, from_token: int, epoch: int) -> pb.ClientFrame:
    return pb.ClientFrame(
        stream_id=stream,
        attach=pb.Attach(generation=generation, epoch=epoch, from_token=from_token),
    )


async def _describe(address: str) -> pb.DescribeResponse:
    async with open_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        return await stub.Describe(pb.DescribeRequest())


async def test_many_streams_share_a_call(instance: Instance) -> None:
    """Each gets its own text, exactly, whatever the others do."""
    async with calling(instance.address) as call:
        caller = call()
        streams = [
            await caller.play(stream, [*TOKENS, str(stream).encode()], repeat=20, dt_ms=stream % 3)
            for stream in range(1, 33)
        ]
        assert await caller.finish() == "OK"
        for stream, received in enumerate(streams, 1):
            assert received.text == (TEXT + str(stream).encode()) * 20
            assert received.done is not None
            assert received.done.finish_reason == pb.FINISH_REASON_STOP
            assert received.done.usage.completion_tokens == 100
            assert received.accepted[0].instance == "inference-0"
            assert received.accepted[0].model == "script"


async def test_a_step_is_one_message_per_call(instance: Instance) -> None:
    """Sixteen streams at one pace do not make sixteen messages a step."""
    async with calling(instance.address) as call:
        caller = call()
        opens = []
        for stream in range(1, 17):
            opens.append(stream)
            await caller.play(stream, [b"x"], repeat=50, dt_ms=5, first_ms=100)
        assert await caller.finish() == "OK"
        assert caller.messages < 16 * 50 / 2


async def test_timing_adds_up(instance: Instance) -> None:
    """The six parts are the time to the first token."""
    async with calling(instance.address) as call:
        caller = call()
        received = await caller.play(1, TOKENS, first_ms=50, dt_ms=1)
        await caller.finish()
        assert received.done is not None
        timing = received.done.timing
        parts = [
            timing.queue_ms,
            timing.preprocess_ms,
            timing.prefill_ms,
            timing.first_decode_ms,
            timing.cache_sync_ms,
            timing.egress_ms,
        ]
        assert all(part >= 0 for part in parts)
        assert sum(parts) == pytest.approx(timing.ttft_ms)
        assert 45 <= timing.first_decode_ms <= timing.ttft_ms <= timing.total_ms


async def test_credit_and_cancel(instance: Instance) -> None:
    """No token beyond the credit; cancel ends it once, and the blocks are free."""
    async with calling(instance.address) as call:
        caller = call()
        received = await caller.play(1, [b"x"], repeat=1000, credit=5)
        await caller.until(lambda: len(received.ids) == 5)
        await caller.send(_credit(1, 3))
        await caller.until(lambda: len(received.ids) == 8)
        await caller.send(_cancel(1), _cancel(1))
        await caller.until(lambda: received.ended)
        assert received.done is not None
        assert received.done.finish_reason == pb.FINISH_REASON_CANCELLED
        assert received.done.usage.completion_tokens == 8
        load = (await _describe(instance.address)).load
        assert load.free_blocks == load.total_blocks
        # An instruction that crosses the end on the wire is no fault.
        await caller.send(_credit(1, 3), _cancel(1))
        assert await caller.finish() == "OK"
        assert received.error is None


async def test_attach_after_the_call_broke(instance: Instance) -> None:
    """Another call goes on from any token index: nothing twice, nothing lost."""
    async with calling(instance.address) as call:
        first = call()
        begun = await first.play(1, TOKENS, repeat=10, dt_ms=2, credit=30, epoch=1)
        await first.until(lambda: len(begun.ids) >= 9)
        await first.cut()
        second = call()
        await second.send(_attach(7, "s/1", 6, epoch=2))
        received = second.streams[7]
        await second.until(lambda: received.ended)
        assert received.accepted[0].from_token == 6
        assert received.offset is not None
        assert begun.ids[:6] + received.ids == [0, 1, 2, 3] * 10
        assert begun.text[: received.offset] + received.text == TEXT * 10
        assert received.done is not None
        await second.send(pb.ClientFrame(stream_id=7, release=pb.Release()))
        await second.send(_attach(8, "s/1", 0, epoch=3))
        await second.until(lambda: second.streams[8].ended)
        assert second.streams[8].error.code == "unknown_stream"


async def test_a_newer_epoch_fences_the_older_call(instance: Instance) -> None:
    """The old owner's stream ends with an error; an older one is refused."""
    async with calling(instance.address) as call:
        old, new = call(), call()
        begun = await old.play(1, [b"x"], repeat=100, credit=4, epoch=5)
        await old.until(lambda: len(begun.ids) == 4)
        await new.send(_attach(1, "s/1", 0, epoch=4))
        await new.until(lambda: new.streams[1].ended)
        assert new.streams[1].error.code == "session_expired"
        await new.send(_attach(2, "s/1", 4, epoch=6))
        await old.until(lambda: begun.ended)
        assert begun.error is not None
        assert "epoch 6" in begun.error.message
        await new.until(lambda: len(new.streams[2].ids) == 96)


async def test_a_direct_caller_needs_nothing_and_is_kept_apart(instance: Instance) -> None:
    """No secret: tenant `direct`, names of its own, no attach; gone when its call is."""
    async with calling(instance.address, secret=None) as call, calling(instance.address) as mesh:
        direct = call()
        received = await direct.play(1, [b"x"], repeat=5, generation="s/1", epoch=9)
        theirs = await mesh().play(1, [b"y"], repeat=5, generation="s/1", epoch=1)
        await direct.send(_attach(2, "s/1", 0, epoch=10))
        await direct.until(lambda: direct.streams[2].ended and received.ended)
        await wait_until(lambda: theirs.ended)
        assert direct.streams[2].error.code == "unauthorized"
        assert received.text == b"x" * 5
        assert theirs.text == b"y" * 5


async def test_a_direct_call_that_breaks_is_cancelled(instance: Instance) -> None:
    """CASES 26: running is 0 and every block free within a second."""
    async with calling(instance.address, secret=None) as call:
        caller = call()
        received = await caller.play(1, [b"x"], repeat=100_000, dt_ms=1)
        await caller.until(lambda: len(received.ids) >= 10)
        await caller.cut()

    async def idle() -> bool:
        load = (await _describe(instance.address)).load
        return load.running == 0 and load.free_blocks == load.total_blocks

    await eventually(idle, within_s=1)


@pytest.mark.parametrize(
    ("frame", "code", "field"),
    [
        (pb.ClientFrame(stream_id=1), "bad_request", "frame"),
        (pb.ClientFrame(open=pb.Open()), "bad_request", "stream_id"),
        (pb.ClientFrame(stream_id=1, open=pb.Open(generation="g")), "bad_request", "messages"),
        (
            pb.ClientFrame(
                stream_id=1,
                open=pb.Open(
                    generation="g",
                    request=pb.GenerateRequest(
                        prompt="x", sampling=pb.Sampling(temperature=float("nan"))
                    ),
                ),
            ),
            "bad_request",
            "temperature",
        ),
        (
            pb.ClientFrame(
                stream_id=1,
                open=pb.Open(generation="g", request=pb.GenerateRequest(prompt="no script")),
            ),
            "bad_request",
            "messages[-1].content",
        ),
        (
            pb.ClientFrame(
                stream_id=1,
                open=pb.Open(generation="g", request=pb.GenerateRequest(prompt="x", model="other")),
            ),
            "model_not_found",
            "model",
        ),
        (
            pb.ClientFrame(stream_id=1, open=pb.Open(request=pb.GenerateRequest(prompt="x"))),
            "bad_request",
            "generation",
        ),
        (_credit(1, 1), "unknown_stream", ""),
        (_cancel(1), "unknown_stream", ""),
    ],
)
async def test_a_bad_frame_is_answered_and_the_call_goes_on(
    instance: Instance, frame: pb.ClientFrame, code: str, field: str
) -> None:
    """CASES 13 and kin: an error frame with the field; the neighbour and the next are served."""
    async with calling(instance.address) as call:
        caller = call()
        neighbour = await caller.play(50, [b"x"], repeat=50, dt_ms=1)
        await caller.send(frame)
        received = caller.streams[frame.stream_id]
        await caller.until(lambda: received.ended)
        assert received.error is not None
        assert (received.error.code, received.error.field) == (code, field)
        after = await caller.play(51, TOKENS)
        assert await caller.finish() == "OK"
        assert neighbour.text == b"x" * 50
        assert after.text == TEXT


async def test_a_stream_id_twice_does_not_disturb_the_first(instance: Instance) -> None:
    """The second opening is refused, the first runs to its end."""
    async with calling(instance.address) as call:
        caller = call()
        received = await caller.play(1, [b"x"], repeat=20, dt_ms=1)
        await caller.play(1, [b"y"], generation="s/other")
        await caller.until(lambda: len(received.text) == 20 and received.done)
        assert received.error is not None
        assert received.error.field == "stream_id"
        assert received.text == b"x" * 20


async def test_garbage_is_invalid_argument(instance: Instance) -> None:
    """What is no message of ours ends the call with the caller's fault, not with ours."""
    async with open_channel(instance.address) as channel:
        raw = channel.stream_stream("/seedance.v2.Inference/Stream")
        call = raw()
        await call.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_wrong_secret_is_unauthenticated(instance: Instance) -> None:
    """A wrong key is never treated as none."""
    async with calling(instance.address, secret="wrong") as call:  # noqa: S106 - that is the case
        caller = call()
        assert await caller.finish() == "UNAUTHENTICATED"


def _script_open(tokens: list[bytes], *, repeat: int = 1, **fields: object) -> pb.StreamRequest:
    request = script_request(script(tokens, repeat=repeat), **fields)
    frame = pb.ClientFrame(stream_id=1, open=pb.Open(request=request_to_pb(request)))
    return pb.StreamRequest(frames=[frame])


async def test_logprobs_travel_in_columns(instance: Instance) -> None:
    """One per token for the stream that asked."""
    async with open_channel(instance.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        call = stub.Stream(iter([_script_open(TOKENS, sampling=Sampling(logprobs=1))]))
        found = [p.chosen.token async for message in call for p in message.tokens.logprobs]
        assert found == TOKENS


async def test_a_reader_that_stops_is_held_and_loses_nothing(instance: Instance) -> None:
    """CASES 43: an unread call's streams pause, another call's go on; read again, all of it comes."""
    total = 60_000
    async with open_channel(instance.address) as channel, calling(instance.address) as call:
        stub = inference_pb2_grpc.InferenceStub(channel)
        slow = stub.Stream(iter([_script_open([b"x" * 100], repeat=total)]))

        async def held() -> bool:
            # The batch is empty though nobody has read the text.
            load = (await _describe(instance.address)).load
            return load.running == 0 and load.free_blocks < load.total_blocks

        await eventually(held, within_s=20)
        other = await call().play(1, TOKENS)
        await wait_until(lambda: other.ended)
        received = 0
        async for message in slow:
            received += len(message.tokens.text)
        assert received == total * 100


async def test_pressure_reaches_every_call() -> None:
    """A queue that fills up is told on all calls, and so is its end."""
    bounds = {"batch_max": 1, "step_tokens_max": 100_000, "queue_max": 4}
    async with running_instance(**bounds) as instance, calling(instance.address) as call:
        busy, watching = call(), call()
        await watching.play(1, [b"w"])
        for stream in range(1, 7):
            await busy.play(stream, [b"x"], repeat=10, dt_ms=5)
        await wait_until(lambda: watching.pressures)
        assert watching.pressures[0].level in {
            pb.PRESSURE_LEVEL_THROTTLE,
            pb.PRESSURE_LEVEL_PAUSE,
        }
        assert watching.pressures[0].queue_depth >= 2
        await wait_until(
            lambda: watching.pressures[-1].level == pb.PRESSURE_LEVEL_NONE, within_s=10
        )
