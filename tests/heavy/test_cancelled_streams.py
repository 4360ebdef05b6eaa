"""Very many streams that are given up: memory at both ends of the calls stays flat."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path

import pytest

from gateway.upstream.base import Open
from gateway.upstream.membership import StaticList
from gateway.upstream.pool import InstancePool
from mesh.clock import SystemClock
from mesh.rpc.channel import open_channel
from mesh.rpc.convert import request_to_pb
from seedance.protocol.request import ChatMessage, GenerateRequest
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc
from tests.support.recording_listener import RecordingListener
from tests.support.service_process import ServiceProcess, running_service
from tests.support.waiting import wait_until

SECRET = "of-this-test"  # noqa: S105
STREAMS, AT_ONCE = 100_000, 100
CALLS, CALLS_AT_ONCE = 10_000, 20
GROWTH_BYTES_MAX = 50 * 1024 * 1024
# Of the growth, what may fall into the second half: a leak grows as much there as in the first.
LATE_BYTES_MAX = 8 * 1024 * 1024
PAGE = os.sysconf("SC_PAGE_SIZE")


def _request() -> GenerateRequest:
    script = {"tokens_b64": [base64.b64encode(b"word ").decode()], "dt_ms": 1000, "repeat": 100}
    return GenerateRequest(messages=(ChatMessage("user", json.dumps(script)),))


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


class _Growth:
    """Resident memory of the instance and of this process, at the start, half-way and at the end."""

    def __init__(self, instance: ServiceProcess) -> None:
        self._pids = (instance.pid, os.getpid())
        self._marks: list[tuple[int, ...]] = []

    def mark(self) -> None:
        self._marks.append(tuple(_resident(pid) for pid in self._pids))

    def check(self) -> None:
        for start, middle, end in zip(*self._marks, strict=True):
            assert end - start < GROWTH_BYTES_MAX, self._marks
            assert end - middle < LATE_BYTES_MAX, self._marks


@pytest.mark.timeout(900)
async def test_a_hundred_thousand_cancelled_streams_leave_nothing() -> None:
    """On a shared call streams are opened, heard and cancelled; nothing of them stays (CASES 34)."""
    async with running_service(
        "inference", "--engine", "script", env={"SEEDANCE_MESH_SECRET": SECRET}
    ) as instance:
        pool = InstancePool(StaticList([instance.address]), SystemClock(), mesh_secret=SECRET)
        running = asyncio.create_task(pool.run())
        await wait_until(pool.ready)
        request, growth = _request(), _Growth(instance)
        [name] = pool._members
        for first in range(0, STREAMS, AT_ONCE):
            if first in (STREAMS // 10, STREAMS * 55 // 100):
                growth.mark()
            listeners = [RecordingListener() for _ in range(AT_ONCE)]
            handles = [
                pool.open(name, Open(f"s/{first + n}", 1, request, "tenant"), listener)
                for n, listener in enumerate(listeners)
            ]
            await wait_until(lambda heard=listeners: all(each.tokens for each in heard))
            for handle in handles:
                handle.cancel()
            await wait_until(lambda heard=listeners: all(e.heard[-1] == "done" for e in heard))
            for handle in handles:
                handle.release()
        growth.mark()
        growth.check()
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.timeout(900)
async def test_ten_thousand_broken_calls_leave_nothing() -> None:
    """A program that opens a call of its own, reads one message and cancels it costs nothing after."""
    async with (
        running_service("inference", "--engine", "script") as instance,
        open_channel(instance.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
        opening = pb.ClientFrame(stream_id=1, open=pb.Open(request=request_to_pb(_request())))

        async def one() -> None:
            call = stub.Stream()
            await call.write(pb.StreamRequest(frames=[opening]))
            await call.read()
            call.cancel()

        growth = _Growth(instance)
        for first in range(0, CALLS, CALLS_AT_ONCE):
            if first in (CALLS // 10, CALLS * 55 // 100):
                growth.mark()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(CALLS_AT_ONCE):
                    tasks.create_task(one())
        growth.mark()
        growth.check()
