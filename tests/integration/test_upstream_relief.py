"""Streams leave an instance that is silent, or drains, for one that can take them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from gateway.upstream.link import SILENT_PINGS
from gateway.upstream.membership import StaticList
from gateway.upstream.pool import InstancePool
from mesh.clock import SystemClock
from seedance.client import AsyncSeedanceClient, AsyncStream
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway
from tests.support.instance import SECRET
from tests.support.scripts import SPLIT_WORDS, script_messages
from tests.support.service_process import ServiceProcess, running_service
from tests.support.waiting import wait_until

DT_MS, REPEAT = 20, 25
TEXT = b"".join(SPLIT_WORDS).decode() * REPEAT
TOKENS = len(SPLIT_WORDS) * REPEAT
STREAMS = 5
GRACE_S = 30.0
# Three unanswered pings take two seconds, the first of them up to one to come; the rest is the machine's.
SILENCE_S = 6.0


@dataclass
class _Mesh:
    """A gateway on real instances."""

    gateway: GatewayUnderTest
    pool: InstancePool
    instances: dict[str, ServiceProcess]

    def load(self, name: str) -> int:
        """Streams that this gateway has there."""
        return self.pool._members[name].streams

    @property
    def busiest(self) -> str:
        """Where most streams run."""
        return max(self.instances, key=self.load)


@contextlib.asynccontextmanager
async def _mesh(count: int) -> AsyncIterator[_Mesh]:
    env = {"SEEDANCE_MESH_SECRET": SECRET, "SEEDANCE_DRAIN_GRACE_S": str(GRACE_S)}
    async with contextlib.AsyncExitStack() as stack:
        instances = {
            name: await stack.enter_async_context(
                running_service("inference", "--engine", "script", "--instance-id", name, env=env)
            )
            for name in (f"i{n}" for n in range(count))
        }
        addresses = [process.address for process in instances.values()]
        pool = InstancePool(StaticList(addresses), SystemClock(), mesh_secret=SECRET)
        running = asyncio.create_task(pool.run())
        try:
            await wait_until(lambda: len(pool._usable_members()) == count, 10)
            async with running_gateway(pool) as gateway:
                yield _Mesh(gateway, pool, instances)
        finally:
            running.cancel()
            await asyncio.wait([running])


@dataclass
class _Reader:
    """Reads one stream, and knows its longest pause."""

    text: str = ""
    longest_s: float = 0.0
    tokens: int = 0

    async def read(self, stream: AsyncStream) -> None:
        last = time.monotonic()
        async for chunk in stream:
            self.text += chunk.delta
            now = time.monotonic()
            self.longest_s, last = max(self.longest_s, now - last), now
        assert stream.usage is not None
        self.tokens = stream.usage.completion_tokens


@contextlib.asynccontextmanager
async def _reading(mesh: _Mesh, streams: int) -> AsyncIterator[list[_Reader]]:
    """Clients that have read their first text; at the end of the block all have read everything."""
    readers = [_Reader() for _ in range(streams)]
    messages = script_messages(SPLIT_WORDS, dt_ms=DT_MS, repeat=REPEAT)
    async with AsyncSeedanceClient(mesh.gateway.url) as client, asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(reader.read(client.chat(messages=messages)))
        await wait_until(lambda: all(reader.text for reader in readers), 10)
        yield readers


@pytest.mark.timeout(60)
async def test_a_stopped_instance_s_streams_go_on_elsewhere() -> None:
    """CASES 55: within seconds, exactly, billed once; and nothing that it says when it wakes is heard."""
    async with _mesh(2) as mesh, _reading(mesh, STREAMS) as readers:
        victim = mesh.busiest
        mesh.instances[victim].send(signal.SIGSTOP)
        try:
            await wait_until(lambda: mesh.load(victim) == 0, SILENCE_S)
        finally:
            mesh.instances[victim].send(signal.SIGCONT)
    assert [reader.text for reader in readers] == [TEXT] * STREAMS
    assert [reader.tokens for reader in readers] == [TOKENS] * STREAMS
    assert max(reader.longest_s for reader in readers) < SILENCE_S


@pytest.mark.timeout(60)
async def test_nobody_leaves_a_silent_instance_for_nobody() -> None:
    """Where no other one is, streams wait for it, and it goes on in the same call."""
    async with _mesh(1) as mesh, _reading(mesh, 1) as readers:
        (link,) = mesh.pool._members["i0"].links
        mesh.instances["i0"].send(signal.SIGSTOP)
        try:
            await wait_until(lambda: link._unanswered > SILENT_PINGS, SILENCE_S)
        finally:
            mesh.instances["i0"].send(signal.SIGCONT)
        assert link.load == 1
    assert readers[0].text == TEXT


@pytest.mark.timeout(60)
async def test_a_draining_instance_hands_its_streams_over() -> None:
    """SIGTERM: they go on elsewhere at once, exactly, and it has ended long before its grace has."""
    async with _mesh(2) as mesh, _reading(mesh, STREAMS) as readers:
        victim = mesh.busiest
        told = time.monotonic()
        assert await mesh.instances[victim].stop() == 0
        assert time.monotonic() - told < GRACE_S / 3
        assert not all(reader.tokens for reader in readers), "they had ended anyway"
    assert [reader.text for reader in readers] == [TEXT] * STREAMS
    assert [reader.tokens for reader in readers] == [TOKENS] * STREAMS
    assert max(reader.longest_s for reader in readers) < 1.0


@pytest.mark.timeout(60)
async def test_over_http_too() -> None:
    """A stream of OpenAI's API leaves a draining instance as well, and its client sees no seam."""
    ask = {"messages": script_messages(SPLIT_WORDS, dt_ms=DT_MS, repeat=REPEAT)}
    async with _mesh(2) as mesh, httpx.AsyncClient(timeout=30) as http:
        url = f"http://127.0.0.1:{mesh.gateway.port}/v1/chat/completions"
        asking = asyncio.create_task(http.post(url, json=ask))
        await wait_until(lambda: mesh.load(mesh.busiest) == 1)
        await mesh.instances[mesh.busiest].stop()
        answer = (await asking).json()
    assert answer["choices"][0]["message"]["content"] == TEXT
    assert answer["usage"]["completion_tokens"] == TOKENS


@pytest.mark.timeout(60)
async def test_a_draining_instance_keeps_what_nobody_else_takes() -> None:
    """Alone, it finishes its streams itself within its grace."""
    async with _mesh(1) as mesh, _reading(mesh, 1) as readers:
        assert await mesh.instances["i0"].stop() == 0
    assert readers[0].text == TEXT
