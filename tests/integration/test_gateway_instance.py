"""A gateway on a real instance, all in this process: what only both together can promise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.upstream.membership import StaticList
from gateway.upstream.pool import InstancePool
from inference.engine.plan import Sampled, StepPlan
from inference.engine.runner import Prepared, Preparer, Runner
from inference.model.load import load_model
from mesh.clock import SystemClock
from seedance.protocol.request import GenerateRequest
from tests.support.fake_runner import FakeRunner, fake_info
from tests.support.gateway_under_test import GatewayUnderTest, Wire, running_gateway, wire
from tests.support.instance import SECRET, running_instance
from tests.support.scripts import script
from tests.support.tiny_models import LLAMA, write_folder
from tests.support.waiting import wait_until

PARTS = (
    "queue_ms",
    "preprocess_ms",
    "prefill_ms",
    "first_decode_ms",
    "cache_sync_ms",
    "egress_ms",
)
Parts = tuple[Runner, Preparer]


@asynccontextmanager
async def _gateway(
    parts: Parts | None = None, **settings: object
) -> AsyncIterator[GatewayUnderTest]:
    async with running_instance(parts=parts, **settings) as instance:
        pool = InstancePool(StaticList([instance.address]), SystemClock(), mesh_secret=SECRET)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(pool.run())
            await wait_until(pool.ready)
            async with running_gateway(pool) as gateway:
                yield gateway
            running.cancel()


async def _timed(client: Wire, **ask: Any) -> tuple[dict[str, float], float, float]:
    """A stream's `timing`, and what the client measured to its first text and to its end, in ms."""
    begun = time.perf_counter()
    await client.send(type="generate", **ask)
    first = None
    while (frame := await client.read())["type"] != "done":
        assert frame["type"] != "error", frame
        if frame["type"] == "token" and first is None:
            first = time.perf_counter()
    end = time.perf_counter()
    return frame["timing"], ((first or end) - begun) * 1e3, (end - begun) * 1e3


def _check(timing: dict[str, float], first_ms: float, end_ms: float) -> None:
    assert sum(timing[part] for part in PARTS) == pytest.approx(timing["ttft_ms"], abs=1)
    assert all(timing[part] >= 0 for part in PARTS), timing
    # The client has what the gateway measured, and both ways on a socket: whole turns of this
    # process's loop, which test and gateway share.
    assert timing["ttft_ms"] <= first_ms <= timing["ttft_ms"] + 400
    assert timing["ttft_ms"] <= timing["total_ms"] <= end_ms


@pytest.mark.parametrize("stream", [True, False])
async def test_the_parts_of_a_script_s_first_text(*, stream: bool) -> None:
    """Six parts that add up to what the client waited; the script's own pause is its first decode."""
    async with _gateway() as gateway, wire(gateway.url) as client:
        content = script([b"a"], first_ms=120, dt_ms=10, repeat=5)
        ask = {"messages": [{"role": "user", "content": content}], "stream": stream}
        timing, first_ms, end_ms = await _timed(client, **ask)
    _check(timing, first_ms, end_ms)
    assert timing["first_decode_ms"] == pytest.approx(120, abs=60)
    assert timing["egress_ms"] >= (0 if stream else 35)


async def test_the_parts_of_a_models_first_text(tmp_path: Path) -> None:
    """The same of a real model, whose prompt is computed in several steps."""
    folder = write_folder(tmp_path, LLAMA)
    parts = load_model(folder, name="tiny", block_size=16, kv_blocks=64, threads=1)
    async with _gateway(parts) as gateway, wire(gateway.url) as client:
        ask = {"prompt": "hello the " * 40, "max_tokens": 5, "ignore_eos": True}
        for _ in range(3):
            timing, first_ms, end_ms = await _timed(client, **ask)
            _check(timing, first_ms, end_ms)
            assert timing["prefill_ms"] > 0
            assert timing["preprocess_ms"] > 0


# ---------------------------------------------------------------- what is promised

STEP_S = 0.01
LATENCY_MS = 400


class _EvenSteps(FakeRunner):
    """Each step takes the same time."""

    def run(self, plan: StepPlan) -> list[Sampled]:
        """Compute, after a while."""
        time.sleep(STEP_S)
        return super().run(plan)


class _Letters:
    """Reads a prompt's bytes as tokens and writes any token as a letter."""

    def prepare(self, request: GenerateRequest) -> Prepared:
        """Tokenize."""
        return Prepared(list((request.prompt or "x").encode()), lambda _: b"w")


@asynccontextmanager
async def _measured() -> AsyncIterator[GatewayUnderTest]:
    """An instance that has seen its speed alone and in company, and so knows it for any batch."""
    async with _gateway((_EvenSteps(fake_info()), _Letters())) as gateway:
        async with wire(gateway.url, windowed=False) as client:
            for count in (1, 16, 2):
                for number in range(count):
                    ask = {"id": f"{count}-{number}", "prompt": "warm up", "max_tokens": 20}
                    await client.send(type="generate", **ask)
                for _ in range(count):
                    await client.until("done")
        yield gateway


async def test_a_longest_latency_is_answered_and_kept() -> None:
    """`accepted` says the quota that fits the time, and there the stream ends with `length`."""
    async with _measured() as gateway, wire(gateway.url, windowed=False) as client:
        ask = {"prompt": "hi", "max_tokens": 1000, "expected_tokens": 20}
        await client.send(type="generate", **ask, max_latency_ms=LATENCY_MS)
        accepted = await client.until("accepted")
        done = await client.until("done")
        quota = accepted["token_quota"]
        assert 2 <= quota <= LATENCY_MS / (STEP_S * 1e3)
        assert 1 <= accepted["adopted_batch_size"] <= 64
        assert (done["finish_reason"], done["usage"]["completion_tokens"]) == ("length", quota)
        # Who names no latency is promised what he asked for.
        await client.send(type="generate", prompt="hi", max_tokens=7)
        assert (await client.until("accepted"))["token_quota"] == 7


@pytest.mark.parametrize("stream", [True, False])
async def test_the_headers_do_the_same(*, stream: bool) -> None:
    """`X-Expected-Tokens` and `X-Max-Latency` are answered in the response's headers."""
    wishes = {"X-Expected-Tokens": "20", "X-Max-Latency": str(LATENCY_MS)}
    body = {"model": "fake", "prompt": "hi", "max_tokens": 1000, "stream": stream}
    async with (
        _measured() as gateway,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}") as client,
    ):
        answer = await client.post("/v1/completions", json=body, headers=wishes)
        assert answer.status_code == 200
        quota = int(answer.headers["X-Token-Quota"])
        assert 2 <= quota <= LATENCY_MS / (STEP_S * 1e3)
        assert 1 <= int(answer.headers["X-Adopted-Batch-Size"]) <= 64
        if not stream:
            (choice,) = answer.json()["choices"]
            assert (choice["finish_reason"], choice["text"]) == ("length", "w" * quota)


async def test_of_two_that_wait_the_sooner_deadline_runs_first() -> None:
    """`deadline_ms` orders work: it overtakes a request that came before it."""
    bounds = {"batch_max": 1}
    parts = (_EvenSteps(fake_info()), _Letters())
    async with _gateway(parts, **bounds) as gateway, wire(gateway.url) as client:
        await client.send(type="generate", id="busy", prompt="hi", max_tokens=15)
        await client.until("token")
        await client.send(type="generate", id="patient", prompt="hi", max_tokens=3)
        await client.send(type="generate", id="urgent", prompt="hi", max_tokens=3, deadline_ms=50)
        ends = [(await client.until("done"))["id"] for _ in range(3)]
        assert ends == ["busy", "urgent", "patient"]
