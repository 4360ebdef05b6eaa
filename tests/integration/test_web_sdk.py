"""The web SDK on real sockets, run by Node, against gateways that fail under it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.store.memory import MemoryStore
from mesh.clock import SystemClock
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway
from tests.support.tcp_proxy import running_proxy

ROOT = Path(__file__).resolve().parents[2]
NODE = shutil.which("node")
pytestmark = [
    pytest.mark.skipif(NODE is None, reason="Node is not installed"),
    pytest.mark.timeout(60),
]
PROMPT = " ".join(f"word{n} 量子😁" for n in range(400))
STREAMS = 4

# Reads several streams at once, and says after each piece of them how far they have come.
PROGRAM = """
import { SeedanceClient } from "./clients/web/seedance.js";
const { url, prompt, streams } = JSON.parse(process.argv[2]);
const client = new SeedanceClient(url, { backoff: { baseMs: 10, triesMax: 100 } });
let read = 0;
const one = async () => {
  const stream = client.chat({ prompt });
  let text = "";
  for await (const chunk of stream) {
    if (chunk.offset !== Buffer.byteLength(text)) throw new Error("an offset is wrong");
    text += chunk.delta;
    console.log(JSON.stringify({ read: (read += 1) }));
  }
  return { text, usage: stream.usage };
};
const answers = await Promise.all(Array.from({ length: streams }, one));
client.close();
console.log(JSON.stringify({ answers }));
"""


class _Page:
    """The program as it runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def next(self) -> dict[str, Any]:
        """What it says next."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, "the program ended early"
        said: dict[str, Any] = json.loads(line)
        return said

    async def answers(self) -> list[dict[str, Any]]:
        """What it has read, in the end."""
        while "answers" not in (said := await self.next()):
            pass
        assert await self._process.wait() == 0
        found: list[dict[str, Any]] = said["answers"]
        return found


@asynccontextmanager
async def _page(url: str) -> AsyncIterator[_Page]:
    assert NODE is not None
    told = json.dumps({"url": url, "prompt": PROMPT, "streams": STREAMS})
    process = await asyncio.create_subprocess_exec(
        *(NODE, "--experimental-websocket", "--input-type=module", "-", told),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
        cwd=ROOT,
    )
    assert process.stdin is not None
    process.stdin.write(PROGRAM.encode())
    process.stdin.close()
    try:
        yield _Page(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _check(answers: list[dict[str, Any]]) -> None:
    tokens = len(PROMPT.split())
    assert [answer["text"] for answer in answers] == [PROMPT] * STREAMS
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [tokens] * STREAMS


async def test_it_streams_through_cuts() -> None:
    """Its connection is cut again and again; each text comes exactly once."""
    async with (
        running_gateway(FakeUpstream(FakeCluster())) as gateway,
        running_proxy(f"127.0.0.1:{gateway.port}") as proxy,
        _page(f"ws://{proxy.address}/v2/infer") as page,
    ):
        for _ in range(5):
            for _ in range(40):
                await page.next()
            proxy.hang_up()
        _check(await page.answers())


async def test_it_resumes_on_another_gateway() -> None:
    """A gateway dies in mid-stream: the texts go on exactly at the other one."""
    store, cluster = MemoryStore(SystemClock(), 120), FakeCluster()

    def die(gateway: GatewayUnderTest) -> None:
        gateway.stop.set()
        for connection in gateway.connections._open:
            connection._socket.transport.abort()  # type: ignore[attr-defined]

    async with (
        running_gateway(FakeUpstream(cluster), store) as second,
        running_gateway(
            FakeUpstream(cluster), store, gateways=f"ws://127.0.0.1:{second.port}"
        ) as first,
        _page(first.url) as page,
    ):
        for _ in range(60):
            await page.next()
        die(first)
        _check(await page.answers())
        assert first.stop.is_set()
