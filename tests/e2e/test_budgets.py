"""A budget under 1,000 streams on two gateways, one of which is killed: what is billed is the budget, to the token."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

import pytest

from seedance import AsyncSeedanceClient, SeedanceError
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
    with urllib.request.urlopen(url, timeout=10) as reply:
        return json.load(reply)["total"]["total_tokens"]


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


async def _run(mesh: LocalMesh) -> list[tuple[str, int]]:
    urls = [f"ws://{gateway.address}/v2/infer" for gateway in mesh.processes("gateway")]
    clients = [AsyncSeedanceClient(urls[n % len(urls)]) for n in range(CLIENTS)]
    seen = [0]
    async with asyncio.TaskGroup() as tasks:
        reading = [
            tasks.create_task(_read(client, seen)) for client in clients for _ in range(STREAMS)
        ]
        await wait_until(lambda: seen[0] > 10_000, within_s=120)
        mesh.kill("gateway-0")
    for client in clients:
        await client.close()
    return [task.result() for task in reading]


def test_a_thousand_streams_use_up_a_budget_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 101: kill -9 of a gateway in the middle; every word that arrived is billed, and the bill is the budget."""
    monkeypatch.setenv("SEEDANCE_BUDGETS", f"local={BUDGET} tokens/month")
    monkeypatch.setenv("SEEDANCE_BATCH_MAX", "512")
    monkeypatch.setenv("SEEDANCE_QUEUE_MAX", "1024")
    with local_mesh(tmp_path) as mesh:
        ends = asyncio.run(_run(mesh))
        assert {code for code, _ in ends} == {"quota_exceeded"}
        asyncio.run(wait_until(lambda: _billed(mesh) == BUDGET, within_s=30))
        had_text = [words for _, words in ends if words]
        assert sum(had_text) + len(had_text) * PROMPT_TOKENS <= BUDGET
