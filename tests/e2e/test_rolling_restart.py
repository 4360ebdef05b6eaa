"""Every gateway and instance is told to end, one after the other, under load: nothing is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedance.client import AsyncSeedanceClient
from tests.support.mesh import LocalMesh, local_mesh
from tests.support.scripts import SPLIT_WORDS, script_messages
from tests.support.waiting import SURELY_S, wait_until, wait_until_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SHORT, LONG = 20, 200
DT_MS = 10
CLIENTS = 6
GRACE_S = 2
EVERYBODY = ("gateway-0", "inference-0", "gateway-1", "inference-1")


@pytest.fixture
def mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalMesh]:
    """Two gateways and two instances, with less patience than usual."""
    monkeypatch.setenv("SEEDANCE_DRAIN_GRACE_S", str(GRACE_S))
    with local_mesh(tmp_path) as running:
        yield running


class _Load:
    """Clients that ask again and again until told to stop, some briefly and some at length."""

    def __init__(self, mesh: LocalMesh) -> None:
        self.enough = asyncio.Event()
        self.texts: list[tuple[int, str]] = []
        self.tokens = 0
        self._gateways = [p.address for p in mesh.processes("gateway")]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        url = f"ws://{self._gateways[number % len(self._gateways)]}"
        repeat = LONG if number < CLIENTS // 2 else SHORT
        async with AsyncSeedanceClient(url) as client:
            while not self.enough.is_set():
                messages = script_messages(SPLIT_WORDS, dt_ms=DT_MS, repeat=repeat)
                stream = client.chat(messages=messages)
                text = "".join([chunk.delta async for chunk in stream])
                self.texts.append((repeat, text))
                assert stream.usage is not None
                self.tokens += stream.usage.completion_tokens


def _all_ready(mesh: LocalMesh) -> bool:
    try:
        for gateway in mesh.processes("gateway"):
            urllib.request.urlopen(f"http://{gateway.address}/readyz", timeout=2).close()
    except OSError:
        return False
    kinds = ("gateway", "inference")
    return all(len(mesh.processes(kind)) == 2 for kind in kinds)


def _billed(mesh: LocalMesh) -> int:
    url = f"http://{mesh.named('gateway-1').address}/v1/usage"
    with urllib.request.urlopen(url, timeout=SURELY_S) as reply:
        return int(json.load(reply)["total"]["completion_tokens"])


async def test_a_rolling_restart_loses_nothing(mesh: LocalMesh) -> None:
    """CASES 112: SIGTERM to everybody in turn; every text is whole, every token billed once."""
    load = _Load(mesh)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        await wait_until(lambda: len(load.texts) >= 2, 30)
        for name in EVERYBODY:
            pid = mesh.kill(name, signal.SIGTERM)
            await asyncio.to_thread(mesh.back, name, pid)
            await asyncio.to_thread(wait_until_sync, lambda: _all_ready(mesh), 30)
        load.enough.set()
    whole = b"".join(SPLIT_WORDS).decode()
    assert all(text == whole * repeat for repeat, text in load.texts)
    assert load.tokens == sum(len(SPLIT_WORDS) * repeat for repeat, _ in load.texts)
    await asyncio.to_thread(wait_until_sync, lambda: _billed(mesh) >= load.tokens, 20)
    assert _billed(mesh) == load.tokens
