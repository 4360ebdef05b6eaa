"""Metering with a real store server, a real ledger file and real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import redis.asyncio

from mesh.rpc.channel import MESH_SECRET_KEY, open_channel
from mesh.rpc.server import RpcServer
from mesh.store import Partitions
from mesh.telemetry.metrics import render
from metering.consumer import GROUP
from metering.ledger import LedgerUnavailableError
from metering.service import MeteringService
from metering.store.sql import ModelSum
from seedance.v2 import metering_pb2 as pb
from seedance.v2 import metering_pb2_grpc
from tests.support.billing_desk import open_desk
from tests.support.running_metering import running_metering as running
from tests.support.usage_events import TRACE_ID, usage_payload
from tests.support.valkey import TestStore, running_valkey
from tests.support.waiting import wait_until

USAGE_STREAM = Partitions().usage_stream(0)
ROOT = Path(__file__).resolve().parents[2]
ONCE = [ModelSum("smol", 1, 7, 2, 5)]


@contextlib.asynccontextmanager
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    connection = redis.asyncio.Redis.from_url(redis_url)
    yield connection
    await connection.aclose()


async def test_same_event_counts_once(valkey: TestStore, tmp_path: Path) -> None:
    """CASES 100: one id counts once: given twice at once, after a restart, after a flush."""
    async with client(valkey.url) as store:
        # Before the group exists, so that nothing written early is lost.
        await store.xadd(USAGE_STREAM, {"payload": usage_payload()})
        await store.xadd(USAGE_STREAM, {"payload": usage_payload()})
        async with running(valkey.url, tmp_path) as metering:
            await wait_until(lambda: metering.count("duplicate") == 1)
            assert await metering.ledger.usage("acme") == ONCE
        async with running(valkey.url, tmp_path) as metering:
            await store.xadd(USAGE_STREAM, {"payload": usage_payload()})
            await wait_until(lambda: metering.count("duplicate") == 1)
            await store.flushall()
            await store.xadd(USAGE_STREAM, {"payload": usage_payload()})
            await wait_until(lambda: metering.count("duplicate") == 2)
            assert await metering.ledger.usage("acme") == ONCE
            await store.xadd(USAGE_STREAM, {"payload": usage_payload("another")})
            await wait_until(lambda: metering.count("recorded") == 1)


async def test_entry_is_acknowledged_after_the_commit(valkey: TestStore, tmp_path: Path) -> None:
    """What a dead consumer left pending is claimed; what is in the ledger is acknowledged."""
    async with client(valkey.url) as store:
        await store.xgroup_create(USAGE_STREAM, GROUP, id="0", mkstream=True)
        await store.xadd(USAGE_STREAM, {"payload": usage_payload()})
        await store.xreadgroup(GROUP, "dead", {USAGE_STREAM: ">"})
        assert (await store.xpending(USAGE_STREAM, GROUP))["pending"] == 1
        async with running(valkey.url, tmp_path) as metering:
            await wait_until(lambda: metering.count("recorded") == 1)
        assert (await store.xpending(USAGE_STREAM, GROUP))["pending"] == 0


async def test_ledger_that_fails_for_a_while(
    valkey: TestStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that the ledger could not write stays pending and is written later."""
    async with client(valkey.url) as store, running(valkey.url, tmp_path) as metering:
        record = metering.ledger.record
        failures = iter([LedgerUnavailableError("x"), LedgerUnavailableError("x")])

        async def failing(payloads: list[bytes]) -> object:
            error = next(failures, None)
            if error is not None:
                raise error
            return await record(payloads)

        monkeypatch.setattr(metering.ledger, "record", failing)
        await store.xadd(USAGE_STREAM, {"payload": usage_payload()})
        await wait_until(lambda: metering.count("recorded") == 1)
        assert next(failures, None) is None


async def test_entries_that_are_no_events(valkey: TestStore, tmp_path: Path) -> None:
    """Garbage is refused, kept aside and acknowledged; the event behind it counts."""
    async with client(valkey.url) as store, running(valkey.url, tmp_path) as metering:
        await store.xadd(USAGE_STREAM, {"other": b"x"})
        await store.xadd(USAGE_STREAM, {"payload": b"\xff"})
        await store.xadd(USAGE_STREAM, {"payload": usage_payload()})
        await wait_until(lambda: metering.count("recorded") == 1)
        assert metering.count("refused") == 2
        assert b'outcome="refused"' in render(metering.metrics.registry)


async def test_store_that_is_away(tmp_path: Path) -> None:
    """Metering starts without the store, and takes what is there once it is back."""
    with running_valkey() as server:
        await asyncio.to_thread(server.stop)
        async with running(server.url, tmp_path) as metering:
            for recorded in (1, 2):
                await asyncio.to_thread(server.start)
                async with client(server.url) as store:
                    await store.xadd(USAGE_STREAM, {"payload": usage_payload(str(recorded))})
                    await wait_until(lambda n=recorded: metering.count("recorded") == n)
                await asyncio.to_thread(server.stop)


async def test_span_belongs_to_the_generations_trace(valkey: TestStore, tmp_path: Path) -> None:
    """CASES 104: the ledger's span is a consumer span in the trace of the event's traceparent."""
    async with client(valkey.url) as store, running(valkey.url, tmp_path) as metering:
        await store.xadd(USAGE_STREAM, {"payload": usage_payload()})
        await wait_until(metering.spans.get_finished_spans)
        (span,) = metering.spans.get_finished_spans()
        assert span.name == "meter"
        assert span.kind.name == "CONSUMER"
        assert f"{span.context.trace_id:032x}" == TRACE_ID
        assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
        assert span.attributes["gen_ai.usage.output_tokens"] == 5


async def test_usage_is_told_to_the_mesh_only(tmp_path: Path) -> None:
    """GetUsage sums per model and in total; with a secret set, a stranger learns nothing."""
    desk = open_desk(tmp_path)
    ledger = desk.ledger
    await ledger.record([usage_payload("1"), usage_payload("2", model="big")])
    rpc = RpcServer(["seedance.v2.Metering"], None, "s3cret")
    metering_pb2_grpc.add_MeteringServicer_to_server(  # type: ignore[no-untyped-call]
        MeteringService(ledger, desk), rpc.server
    )
    port = await rpc.start("127.0.0.1:0")
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = metering_pb2_grpc.MeteringStub(channel)  # type: ignore[no-untyped-call]
        shown = {"metadata": ((MESH_SECRET_KEY, "s3cret"),)}
        answer = await stub.GetUsage(pb.GetUsageRequest(tenant="acme"), **shown)
        assert (answer.total.requests, answer.total.completion_tokens) == (2, 10)
        assert [s.model for s in answer.models] == ["big", "smol"]
        for request, given, status in (
            (pb.GetUsageRequest(tenant="acme"), {}, "UNAUTHENTICATED"),
            (pb.GetUsageRequest(), shown, "INVALID_ARGUMENT"),
            (pb.GetUsageRequest(tenant="acme", from_ms=2, until_ms=1), shown, "INVALID_ARGUMENT"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetUsage(request, **given)
            assert refused.value.code().name == status
    await rpc.drain(0)
    ledger.close()


async def test_process_from_start_to_drain(valkey: TestStore, tmp_path: Path) -> None:
    """The process announces itself, takes usage, answers, and ends on SIGTERM with code 0."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "metering", "--port", "0", "--redis", valkey.url, "--announce"),
        *("--ledger", f"sqlite:///{tmp_path}/ledger.db", "--die-with-parent"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(20):
        ready = (await process.stdout.readline()).decode().split()
        assert ready[0] == "ready"
        async with client(valkey.url) as store, open_channel(ready[1]) as channel:
            await store.xadd(USAGE_STREAM, {"payload": usage_payload()})
            stub = metering_pb2_grpc.MeteringStub(channel)  # type: ignore[no-untyped-call]
            while True:
                answer = await stub.GetUsage(pb.GetUsageRequest(tenant="acme"))
                if answer.total.requests:
                    break
            assert answer.total.prompt_tokens == 7
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--ledger", "sqlite:////nowhere/at/all.db"),
        ("--redis", "http://x"),
        ("--port", "x"),
        ("--plans", "/nowhere.yaml"),
    ],
)
async def test_bad_setting_is_one_line(tmp_path: Path, flag: str, value: str) -> None:
    """A setting that cannot work ends the process with one line and code 2."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "metering", "--port", "0", flag, value),
        cwd=tmp_path,  # the default ledger is made where the process runs
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert said.count(b"\n") == 1
