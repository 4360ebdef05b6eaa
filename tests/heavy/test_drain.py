"""A gateway that ends under 200 streams and 200 idle connections."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from seedance.client import AsyncSeedanceClient, AsyncStream
from tests.support.gateway_under_test import Wire, wire
from tests.support.mesh import LocalMesh, local_mesh
from tests.support.scripts import script_messages
from tests.support.waiting import wait_until

STREAMS = IDLE = 200
TOKENS, DT_MS = 240, 250  # a minute each
WORDS = [b"w\xc3", b"\xb6rd "]
TEXT = b"".join(WORDS).decode() * (TOKENS // len(WORDS))
GRACE_S = 10.0


@pytest.fixture
def mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalMesh]:
    """Two gateways, two instances."""
    monkeypatch.setenv("SEEDANCE_DRAIN_GRACE_S", str(GRACE_S))
    with local_mesh(tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def _idle(url: str) -> AsyncIterator[list[Wire]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(wire(url)) for _ in range(IDLE)]


async def _read(stream: AsyncStream, pieces: list[str]) -> int:
    async for chunk in stream:
        pieces.append(chunk.delta)  # noqa: PERF401 - looked at while it grows
    assert stream.usage is not None
    return stream.usage.completion_tokens


@pytest.mark.timeout(300)
async def test_sigterm_with_two_hundred_streams(mesh: LocalMesh) -> None:
    """CASES 112: the idle are closed with 1001, streams go on elsewhere whole, it ends within its grace."""
    victim = mesh.named("gateway-0")
    url = f"ws://{victim.address}/v2/infer"
    async with _idle(url) as idle, contextlib.AsyncExitStack() as clients:
        pieces: list[list[str]] = [[] for _ in range(STREAMS)]
        reading = []
        for own in pieces:
            client = await clients.enter_async_context(AsyncSeedanceClient(url))
            messages = script_messages(WORDS, dt_ms=DT_MS, repeat=TOKENS // len(WORDS))
            reading.append(asyncio.create_task(_read(client.chat(messages=messages), own)))
        await wait_until(lambda: all(len(own) > 1 for own in pieces), 60)
        told = time.monotonic()
        mesh.kill("gateway-0", signal.SIGTERM)
        closes = await asyncio.gather(*(client.closed() for client in idle))
        await wait_until(lambda: not Path(f"/proc/{victim.pid}").exists(), GRACE_S + 5)
        ended_s = time.monotonic() - told
        billed = await asyncio.gather(*reading)
    print(f"the gateway ended {ended_s:.1f} s after SIGTERM")  # noqa: T201
    assert set(closes) == {1001}
    assert ended_s <= GRACE_S
    assert ["".join(own) for own in pieces] == [TEXT] * STREAMS
    assert billed == [TOKENS] * STREAMS
