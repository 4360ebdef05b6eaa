"""A mesh whose store is a cluster: gateways and nodes are killed, text and bill stay exact."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.ports import free_port
from mesh.store import check_store, partitions_of
from seedance.client import AsyncSeedanceClient
from tests.support.cluster import TestCluster, running_cluster
from tests.support.scripts import SPLIT_WORDS, script_messages
from tests.support.service_process import ServiceProcess, running_service
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

REPEAT, DT_MS = 40, 10
TEXT = (b"".join(SPLIT_WORDS) * REPEAT).decode()
TOKENS = len(SPLIT_WORDS) * REPEAT
# Their sessions are of several partitions, on all nodes.
CLIENTS = 8
KILL_AT = 30


@pytest.fixture(scope="module")
def nodes() -> Iterator[TestCluster]:
    """A cluster for the file: every test puts back what it killed."""
    with running_cluster() as running:
        yield running


@dataclass
class _Mesh:
    gateways: list[ServiceProcess]

    def billed(self) -> int:
        url = f"http://{self.gateways[1].address}/v1/usage"
        with urllib.request.urlopen(url, timeout=5) as reply:
            return int(json.load(reply)["total"]["completion_tokens"])


@contextlib.asynccontextmanager
async def _mesh(store: str, folder: Path) -> AsyncIterator[_Mesh]:
    """Two gateways, an instance and metering on one store."""
    ports = [free_port()]
    ports.append(free_port(taken=ports))
    urls = ",".join(f"ws://127.0.0.1:{port}" for port in ports)
    env = {"SEEDANCE_MESH_SECRET": "of-this-test"}
    async with contextlib.AsyncExitStack() as stack:

        async def start(module: str, *flags: str) -> ServiceProcess:
            return await stack.enter_async_context(running_service(module, *flags, env=env))

        ledger = f"sqlite:///{folder / 'ledger.db'}"
        metering = await start("metering", "--redis", store, "--ledger", ledger)
        instance = await start("inference", "--engine", "script")
        gateways = [
            await start(
                *("gateway", "--port", str(port), "--gateways", urls, "--redis", store),
                *("--instances", instance.address, "--metering", metering.address),
                *("--anonymous-tenant", "acme"),
            )
            for port in ports
        ]
        yield _Mesh(gateways)


async def _stream(mesh: _Mesh, arrived: list[int]) -> tuple[str, int]:
    """One stream from the first gateway; its text, and what it was told to cost."""
    text = ""
    async with AsyncSeedanceClient(f"ws://{mesh.gateways[0].address}") as client:
        stream = client.chat(messages=script_messages(SPLIT_WORDS, dt_ms=DT_MS, repeat=REPEAT))
        async for chunk in stream:
            text += chunk.delta
            arrived.append(1)
        assert stream.usage is not None
        return text, stream.usage.completion_tokens


async def _streams_all_right(mesh: _Mesh, streams: list[asyncio.Task[tuple[str, int]]]) -> None:
    assert await asyncio.gather(*streams) == [(TEXT, TOKENS)] * CLIENTS
    billed = CLIENTS * TOKENS
    await wait_until(lambda: mesh.billed() >= billed, within_s=20)
    assert mesh.billed() == billed


async def test_a_killed_gateway_on_a_cluster(nodes: TestCluster, tmp_path: Path) -> None:
    """CASES 62: sessions of many partitions go on at the other gateway, byte for byte, billed once."""
    async with _mesh(nodes.url, tmp_path) as mesh:
        arrived: list[int] = []
        streams = [asyncio.create_task(_stream(mesh, arrived)) for _ in range(CLIENTS)]
        await wait_until(lambda: len(arrived) > CLIENTS * KILL_AT)
        await mesh.gateways[0].kill()
        await _streams_all_right(mesh, streams)


async def test_a_killed_node_comes_back_empty(nodes: TestCluster, tmp_path: Path) -> None:
    """CASES 56: its partitions' sessions go on from memory, are written again, and are billed once."""
    async with _mesh(nodes.url, tmp_path) as mesh:
        arrived: list[int] = []
        streams = [asyncio.create_task(_stream(mesh, arrived)) for _ in range(CLIENTS)]
        await wait_until(lambda: len(arrived) > CLIENTS * KILL_AT)
        await asyncio.to_thread(nodes.kill, 1)
        await wait_until(lambda: len(arrived) > 2 * CLIENTS * KILL_AT)
        await asyncio.to_thread(nodes.restart, 1)
        await _streams_all_right(mesh, streams)


@pytest.mark.parametrize(
    ("module", "cluster", "partitions", "why"),
    [
        ("gateway", False, "0", "begins with redis+cluster://"),
        ("metering", True, "8", "say --store-partitions 16"),
    ],
)
async def test_a_store_of_another_kind_is_refused(
    nodes: TestCluster, module: str, *, cluster: bool, partitions: str, why: str
) -> None:
    """One line and exit code 2: a cluster taken for a server, and a wrong number of partitions."""
    await check_store(nodes.url, partitions_of(nodes.url, 0))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "--port", "0", "--store-partitions", partitions),
        *("--redis", nodes.url if cluster else nodes.node_urls[0]),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert why in said.decode()
    assert len(said.splitlines()) == 1
