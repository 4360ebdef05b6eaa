"""A budget under 1,000 streams on two gateways, one of which is killed: what is billed is the budget, to the token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from seedance import AsyncSeedanceClient, SeedanceClient, SeedanceError
from tests.support.mesh import LocalMesh, local_mesh
from tests.support.scripts import script_messages
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CLIENTS, STREAMS = 20, 50
WORD = b"word "
MESSAGES = script_messages([WORD], dt_ms=20, repeat=100_000)
PROMPT_TOKENS = len(MESSAGES[0]["content"])
BUDGET = CLIENTS * STREAMS * PROMPT_TOKENS + 40_000


def _billed(mesh: LocalMesh) -> int:
    url = f"http://{mesh.named('gateway-1').address}/v1/usage"
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.load(reply)["total"]["total_tokens"]
    except urllib.error.HTTPError as error:
        assert error.code == 503, "metering is being started again"  # noqa: PT017
        return -1


async def _read(client: AsyncSeedanceClient, seen: list[int]) -> tuple[str, int]:
    """A stream's end, as error code, and how many words it had."""
    words = 0
    stream = client.chat(messages=MESSAGES, priority=5)
    try:
        async for chunk in stream:
            assert chunk.delta == WORD.decode() * chunk.tokens
            words += chunk.tokens
            seen[0] += chunk.tokens
    except SeedanceError as error:
        return error.code.value, words
    return "done", words


async def _run(
    mesh: LocalMesh, clients_count: int, streams: int, killed: Sequence[str]
) -> list[tuple[str, int]]:
    """Every stream's end; one process after the other is killed, each when more text has come."""
    urls = [f"ws://{gateway.address}/v2/infer" for gateway in mesh.processes("gateway")]
    clients = [AsyncSeedanceClient(urls[n % len(urls)]) for n in range(clients_count)]
    seen = [0]
    async with asyncio.TaskGroup() as tasks:
        reading = [
            tasks.create_task(_read(client, seen)) for client in clients for _ in range(streams)
        ]
        for name in killed:
            wanted = seen[0] + 10 * clients_count * streams
            await wait_until(lambda wanted=wanted: seen[0] > wanted, within_s=120)
            mesh.kill(name)
    for client in clients:
        await client.close()
    return [task.result() for task in reading]


PLANS = """
format: 1
currency: CNY
time_zone: Asia/Shanghai
rounding: {mode: half_up, digits: 2}
default_plan: standard
plans:
  standard:
    - version: "2026"
      since: 2026-01-01
      prices:
        tokens:
          - {models: ["*"], input_per_1000: "0.08", cached_per_1000: "0.02", output_per_1000: "0.16"}
"""


def test_money_is_counted_at_the_plans_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the prompt leaves, as many tokens as it buys: one more would exceed the budget, and the invoice agrees."""
    plans = tmp_path / "plans.yaml"
    plans.write_text(PLANS)
    monkeypatch.setenv("SEEDANCE_PLANS", str(plans))
    monkeypatch.setenv("SEEDANCE_BUDGETS", "local=0.10 money/month soft 0.05")
    words = int((Decimal("0.10") - PROMPT_TOKENS * Decimal("0.00008")) / Decimal("0.00016"))
    with local_mesh(tmp_path / "mesh") as mesh:
        with SeedanceClient(mesh.ws) as client:
            stream = client.chat(messages=MESSAGES)
            text = ""

            def read() -> None:
                nonlocal text
                for chunk in stream:
                    text += chunk.delta

            with pytest.raises(SeedanceError, match="budget"):
                read()
            assert text == WORD.decode() * words
            assert stream.usage.completion_tokens == words
        metrics = f"http://{mesh.named('gateway-0').address}/metrics"
        with urllib.request.urlopen(metrics, timeout=10) as reply:
            assert (
                b'seedance_gateway_soft_budgets_reached_total{tenant="local"} 1.0' in reply.read()
            )
        url = f"http://{mesh.named('gateway-0').address}/v1/invoices"

        def total() -> str:
            with urllib.request.urlopen(url, timeout=10) as reply:
                return json.load(reply)["data"][-1]["total"]

        asyncio.run(wait_until(lambda: total() == "0.10", within_s=20))


def test_a_thousand_streams_use_up_a_budget_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 101: kill -9 of a gateway in the middle; every word that arrived is billed, and the bill is the budget."""
    monkeypatch.setenv("SEEDANCE_BUDGETS", f"local={BUDGET} tokens/month")
    monkeypatch.setenv("SEEDANCE_BATCH_MAX", "512")
    monkeypatch.setenv("SEEDANCE_QUEUE_MAX", "1024")
    with local_mesh(tmp_path) as mesh:
        ends = asyncio.run(_run(mesh, CLIENTS, STREAMS, ["gateway-0"]))
        assert {code for code, _ in ends} == {"quota_exceeded"}
        with contextlib.suppress(AssertionError):
            asyncio.run(wait_until(lambda: _billed(mesh) == BUDGET, within_s=30))
        assert _billed(mesh) == BUDGET
        had_text = [words for _, words in ends if words]
        assert sum(had_text) + len(had_text) * PROMPT_TOKENS <= BUDGET


def test_a_budget_holds_while_router_and_metering_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is asked for the next token: the bill is the budget, however often they are killed (CASES 101)."""
    clients, streams = 4, 10
    budget = clients * streams * PROMPT_TOKENS + 8_000
    monkeypatch.setenv("SEEDANCE_BUDGETS", f"local={budget} tokens/month")
    with local_mesh(tmp_path) as mesh:
        killed = ["metering-0", "router-0", "metering-0", "router-0", "metering-0"]
        ends = asyncio.run(_run(mesh, clients, streams, killed))
        assert {code for code, _ in ends} == {"quota_exceeded"}
        asyncio.run(wait_until(lambda: _billed(mesh) == budget, within_s=60))
        assert sum(words for _, words in ends) == 8_000
