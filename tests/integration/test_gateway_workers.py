"""`seedance gateway --workers N`: processes on one port, any of which serves a resume."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import websockets

from launcher.loadtest.load import Load, target_of
from launcher.loadtest.prompts import script_prompts
from launcher.loadtest.run import run
from launcher.ports import free_port
from seedance.client import AsyncSeedanceClient
from tests.support.scripts import SPLIT_WORDS, script_messages
from tests.support.service_process import ServiceProcess, running_service
from tests.support.valkey import running_valkey
from tests.support.waiting import SURELY_S, wait_until

pytestmark = pytest.mark.timeout(120)

ENVIRONMENT = {"SEEDANCE_MESH_SECRET": "shared"}
REPEAT = 60
TEXT = (b"".join(SPLIT_WORDS) * REPEAT).decode()
CLIENTS = 8


@contextlib.asynccontextmanager
async def _workers(*flags: str) -> AsyncIterator[ServiceProcess]:
    """Two workers over a real store and a script instance."""
    with running_valkey() as store:
        async with (
            running_service("inference", "--engine", "script", env=ENVIRONMENT) as instance,
            running_service(
                "gateway",
                *("--workers", "2", "--redis", store.url, "--instances", instance.address),
                *("--anonymous-tenant", "local", "--drain-grace-s", "5", *flags),
                env=ENVIRONMENT,
            ) as gateway,
        ):
            yield gateway


def _pids(gateway: ServiceProcess) -> list[int]:
    text = Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def _server(address: str) -> str:
    async with websockets.connect(f"ws://{address}/v2/infer", proxy=None) as socket:
        return str(json.loads(await socket.recv())["server"])


async def _stream(client: AsyncSeedanceClient, halfway: asyncio.Event) -> str:
    text = ""
    messages = script_messages(SPLIT_WORDS, dt_ms=8, repeat=REPEAT)
    async for chunk in client.chat(messages=messages):
        text += chunk.delta
        if len(text) > len(TEXT) // 3:
            halfway.set()
    return text


async def test_a_killed_worker_costs_no_byte() -> None:
    """`kill -9` of one worker under load: every client's text is exact, and there are two again."""
    async with _workers() as gateway, contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncSeedanceClient(f"ws://{gateway.address}"))
            for _ in range(CLIENTS)
        ]
        halfway = [asyncio.Event() for _ in clients]
        streams = [
            asyncio.create_task(_stream(*pair)) for pair in zip(clients, halfway, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in halfway))
        before = _pids(gateway)
        os.kill(before[0], signal.SIGKILL)
        assert await asyncio.gather(*streams) == [TEXT] * CLIENTS
        await wait_until(lambda: len(set(_pids(gateway)) - {before[0]}) == 2, within_s=20)


async def test_connections_are_spread_over_named_workers() -> None:
    """Each worker has a gateway id of its own, and new connections reach both."""
    async with _workers("--gateway-id", "edge") as gateway:
        found: set[str] = set()
        for _ in range(64):
            found.add(await _server(gateway.address))
            if len(found) == 2:
                break
    assert found == {"edge-0", "edge-1"}


async def test_a_resume_is_served_by_any_worker() -> None:
    """After a cut a session goes on in whichever worker its next connection lands."""
    load = Load(connections=16, duration_s=2, max_tokens=60, storm_at_s=0.8)
    async with _workers() as gateway:
        target = target_of(f"ws://{gateway.address}", subprotocol="seedance.v2.json")
        tally = await run(target, load, script_prompts(60, 15), lambda _seconds, _crowd: None)
    assert tally.back.count == 16
    assert tally.asked == tally.exact > 16


async def test_a_signal_drains_all() -> None:
    """SIGTERM ends parent and workers in good order: clients hear 1001, the exit status is 0."""
    async with _workers() as gateway:
        pids = _pids(gateway)
        sockets = [
            await websockets.connect(f"ws://{gateway.address}/v2/infer", proxy=None)
            for _ in range(8)
        ]
        assert await gateway.stop() == 0
        for socket in sockets:
            await socket.wait_closed()
            assert socket.close_code == 1001
        assert not _alive(pids)


async def test_workers_of_a_killed_parent_end() -> None:
    """Without the one that keeps them none stays behind on the port."""
    async with _workers() as gateway:
        pids = _pids(gateway)
        await gateway.kill()
        await wait_until(lambda: not _alive(pids), within_s=20)


async def test_every_workers_metrics_can_be_had() -> None:
    """Worker n answers Prometheus on `metrics_port` + n."""
    port = free_port()

    def read(number: int) -> bytes:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port + number}/metrics", timeout=SURELY_S
        ) as page:
            return page.read()

    async with (
        _workers("--metrics-port", str(port)) as gateway,
        websockets.connect(f"ws://{gateway.address}/v2/infer", proxy=None) as socket,
    ):
        await socket.recv()
        pages = [await asyncio.to_thread(read, number) for number in range(2)]
    values = [page.partition(b"\nseedance_gateway_connections ")[2][:3] for page in pages]
    assert sorted(values) == [b"0.0", b"1.0"]


async def test_a_port_in_use_is_one_line() -> None:
    """Somebody else's port is not shared by mistake, though the system would let workers do so."""
    async with _workers() as gateway:
        port = gateway.address.rpartition(":")[2]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "--port", port, "--workers", "2"),
            *("--redis", "redis://127.0.0.1:1/0", "--instances", "127.0.0.1:1"),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
    assert process.returncode == 2
    assert said.decode().strip().count("\n") == 0
    assert "--port" in said.decode()
