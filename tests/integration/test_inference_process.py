"""An instance as a process among others: health, drain, lease, command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
import urllib.request
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from launcher.ports import free_port
from mesh.rpc.channel import open_channel
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc, router_pb2, router_pb2_grpc
from tests.support.instance import calling, eventually, running_instance
from tests.support.router_process import running_router
from tests.support.scripts import script
from tests.support.service_process import START_S
from tests.support.waiting import SURELY_S

ROOT = Path(__file__).resolve().parents[2]


async def test_describe_health_and_reflection() -> None:
    """What it serves, that it serves, and how to find out."""
    async with running_instance() as instance, open_channel(instance.address) as channel:
        described = await inference_pb2_grpc.InferenceStub(channel).Describe(pb.DescribeRequest())
        assert (described.instance, described.model) == ("inference-0", "script")
        assert described.engine == "script"
        assert described.load.total_blocks > 0
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="seedance.v2.Inference"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for listed in reflection.ServerReflectionInfo(iter([request])):
            names = {service.name for service in listed.list_services_response.service}
            assert "seedance.v2.Inference" in names


async def test_drain_refuses_new_streams_and_ends_running_ones() -> None:
    """New: `unavailable`, retryable. Running: to their end. Health: not serving."""
    stop = asyncio.Event()
    async with (
        running_instance(stop=stop, drain_grace_s=10) as instance,
        calling(instance.address) as call,
        open_channel(instance.address) as channel,
    ):
        caller = call()
        running = await caller.play(1, [b"x"], repeat=40, dt_ms=10)
        await caller.until(lambda: running.ids)
        stop.set()
        health = health_pb2_grpc.HealthStub(channel)

        async def not_serving() -> bool:
            answer = await health.Check(health_pb2.HealthCheckRequest())
            return answer.status == health_pb2.HealthCheckResponse.NOT_SERVING

        await eventually(not_serving)
        refused = await caller.play(2, [b"y"])
        await caller.until(lambda: refused.ended)
        assert refused.error is not None
        assert (refused.error.code, refused.error.retryable) == ("unavailable", True)
        await caller.until(lambda: running.ended)
        assert running.text == b"x" * 40


async def test_an_instance_keeps_its_lease_and_says_when_it_leaves() -> None:
    """Registered with its names and its load, kept beyond one lease, gone when it ends."""
    async with running_router(lease_ms=300) as router, open_channel(router) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        found: list[router_pb2.Instance] = []

        async def there() -> bool:
            with contextlib.suppress(grpc.aio.AioRpcError):
                found.append((await stub.Route(router_pb2.RouteRequest(user="u"))).instance)
                return True
            return False

        async def gone() -> bool:
            return not await there()

        async with running_instance(router=router, aliases="seedance-llm-7b") as instance:
            await eventually(there)
            assert found[-1].address == instance.address
            assert list(found[-1].models) == ["script", "seedance-llm-7b"]
            assert found[-1].load.total_blocks > 0
            await asyncio.sleep(0.5)  # longer than a lease: only renewals keep it
            assert await there()
        await eventually(gone, within_s=0.25)


async def test_an_instance_finds_a_router_that_starts_later() -> None:
    """A router that is away stops nothing, and is told as soon as it is there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with running_instance(router=f"127.0.0.1:{port}") as instance:
        async with calling(instance.address) as call:
            caller = call()
            received = await caller.play(1, [b"x"])
            await caller.until(lambda: received.ended)
        async with running_router(port=port) as router, open_channel(router) as channel:
            stub = router_pb2_grpc.RouterStub(channel)

            async def there() -> bool:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stub.Route(router_pb2.RouteRequest(user="u"))
                    return True
                return False

            await eventually(there)


async def _run(*argv: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *argv,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), START_S)
    return process.returncode, out.decode(), err.decode()


async def test_the_direct_example_streams_as_it_stands() -> None:
    """`examples/grpc_direct.py` is all a program needs."""
    async with running_instance() as instance:
        content = script([b"Hello", b" world"], repeat=2)
        code, out, _ = await _run("examples/grpc_direct.py", instance.address, content)
    assert (code, out) == (0, "Hello worldHello world\n")


async def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    """It says what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, out, err = await _run("-m", "inference", "--engine", "script", "--port", port)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "--port" in err


async def test_a_missing_model_is_one_line_and_exit_code_2() -> None:
    """Without `--model`, and with a path where nothing is."""
    for argv in ((), ("--model", "/nowhere/model")):
        code, out, err = await _run("-m", "inference", *argv)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1, err


async def test_metrics_for_prometheus() -> None:
    """Tokens, batch, queue, blocks and the time of each stage, on a port of their own."""
    port = free_port("127.0.0.1")
    async with running_instance(metrics_port=port) as instance, calling(instance.address) as call:
        caller = call()
        received = await caller.play(1, [b"x"], repeat=7)
        await caller.until(lambda: received.ended)

        def scrape() -> str:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/metrics", timeout=SURELY_S
            ) as reply:
                return reply.read().decode()

        async def counted() -> bool:
            text = await asyncio.to_thread(scrape)
            return "seedance_inference_tokens_total 7.0" in text and 'reason="stop"' in text

        async def staged() -> bool:
            text = await asyncio.to_thread(scrape)
            stages = ("fetch_wait", "fetch", "compute", "absorb", "emit")
            read = [
                re.search(
                    rf"^seedance_inference_stage_{stage}_seconds_total (\S+)", text, re.MULTILINE
                )
                for stage in stages
            ]
            steps = "seedance_inference_steps_total 7.0" in text
            return steps and all(found and float(found[1]) > 0 for found in read)

        await eventually(counted)
        await eventually(staged)


async def test_an_engine_that_fails_ends_its_process() -> None:
    """It does not stand there healthy and silent: its callers go elsewhere."""
    async with running_instance() as instance, calling(instance.address) as call:
        caller = call()
        instance._core.fetch = lambda: 1 / 0  # type: ignore[method-assign]
        await caller.play(1, [b"x"])
        assert await caller.finish() != "OK"
        assert instance.crashed


async def test_sigterm_lets_a_stream_end_and_exits_with_0() -> None:
    """A real process: the ready line, a stream across SIGTERM, a clean end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inference", "--engine", "script", "--port", "0", "--announce"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    ready = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
    assert re.fullmatch(r"ready 127\.0\.0\.1:\d+\n", ready)
    async with calling(ready.split()[1], secret=None) as call:
        caller = call()
        received = await caller.play(1, [b"x"], repeat=30, dt_ms=10)
        await caller.until(lambda: received.ids)
        process.terminate()
        await caller.until(lambda: received.ended)
        assert received.text == b"x" * 30
        assert await asyncio.wait_for(process.wait(), 10) == 0
