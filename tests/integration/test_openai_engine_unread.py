"""The openai engine and streams that nobody reads: parked, come back for, or never begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from mesh.rpc.channel import MESH_SECRET_KEY
from mesh.rpc.convert import request_to_pb
from seedance.v2 import inference_pb2 as pb
from tests.support.instance import SECRET, calling
from tests.support.openai_engine import TEXT, WORDS, chat_request, open_stream, upstream_instance
from tests.support.openai_server import OpenAIServer, openai_server
from tests.support.waiting import SURELY_S, wait_until


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with openai_server() as serving:
        serving.plan.tokens = list(WORDS)
        yield serving


async def test_who_comes_back_while_the_server_is_silent_keeps_its_stream(
    server: OpenAIServer,
) -> None:
    """Parked or not, a generation has one stream: it goes on there, and nobody else is disturbed."""
    server.plan.hang_after, server.plan.times = 9, 1
    async with (
        upstream_instance(server, attach_ttl_s=0.1, upstream_idle_s=2.0) as instance,
        calling(instance.address) as call,
    ):
        first = call()
        begun = await open_stream(first, epoch=1, credit=20)
        await first.until(lambda: len(begun.ids) == 9)
        await first.cut()
        places = instance._engine.scheduler.places
        await wait_until(lambda: places.queued == 1)  # its blocks are taken
        assert server.open == 1
        second = call()
        attach = pb.Attach(generation="s/1", epoch=2, from_token=9)
        await second.send(pb.ClientFrame(stream_id=7, attach=attach))
        received = second.streams[7]
        await second.until(lambda: received.ended)
        assert received.error is not None
        assert received.error.code == "unavailable"
        assert len(server.requests) == 1
        other = await open_stream(second, 8, generation="s/2")
        await second.until(lambda: other.ended)
        assert other.text == TEXT


async def test_a_continuation_that_never_runs_hangs_up(server: OpenAIServer) -> None:
    """What was said again for it is let go of with it, not when its transcript is forgotten."""
    async with upstream_instance(server) as one, calling(one.address) as call:
        begun = await open_stream(call(), credit=15)
        await wait_until(lambda: len(begun.ids) == 15)
    server.plan.dt_s = 0.02
    async with upstream_instance(server, batch_max=1) as other, calling(other.address) as call:
        caller = call()
        await open_stream(caller, 1)
        await wait_until(lambda: server.open == 1)
        waits = await open_stream(caller, 2, epoch=2, forced_prefix=begun.ids[:5])
        await caller.until(lambda: waits.accepted)
        assert server.open == 2
        await caller.send(pb.ClientFrame(stream_id=2, cancel=pb.Cancel()))
        await wait_until(lambda: server.open == 1, within_s=0.3)


class _GoneCaller:
    """The context of a call whose other end is gone: nothing can be written any more."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((MESH_SECRET_KEY, SECRET),)

    async def write(self, _message: object) -> None:
        raise grpc.aio.UsageError("the other end is gone")


async def test_a_failed_write_ends_what_was_being_prepared(server: OpenAIServer) -> None:
    """An answer that a silent server says again holds nobody's call open: its streams are told at once."""
    async with upstream_instance(server) as instance, calling(instance.address) as call:
        begun = await open_stream(call(), credit=15)
        await wait_until(lambda: len(begun.ids) == 15)
    server.plan.hang_after = 3

    async def requests() -> AsyncIterator[pb.StreamRequest]:
        opening = pb.Open(
            request=request_to_pb(chat_request()), generation="s/9", forced_prefix=begun.ids
        )
        yield pb.StreamRequest(frames=[pb.ClientFrame(stream_id=1, open=opening)])
        await wait_until(lambda: server.open == 1)
        # Refused at once, and so there is something to write.
        yield pb.StreamRequest(frames=[pb.ClientFrame(stream_id=0)])
        await asyncio.Event().wait()

    async with upstream_instance(server) as instance, asyncio.timeout(SURELY_S):
        await instance._service.Stream(requests(), _GoneCaller())  # type: ignore[arg-type]
        assert not instance._service._deliverer.calls
        await wait_until(lambda: server.open == 0, within_s=1)
