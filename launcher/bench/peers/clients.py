"""Clients that take times: one of OpenAI's streams by SSE, one of ours over a WebSocket.

They share the machine with what they measure, so the SSE client is a bare socket: a comfortable one costs
more than the server's work per token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from launcher.bench.peers.figures import Round, Timing
from seedance.client import AsyncSeedanceClient
from seedance.protocol.errors import SeedanceError

__all__ = ["Ask", "Client", "Load", "measure_round", "sse_client", "websocket_client"]

# Sends a prompt, and notes in the timing what comes of it and when.
Ask = Callable[[str, Timing], Awaitable[None]]
Client = Callable[[], AbstractAsyncContextManager[Ask]]

now = time.perf_counter

# About 96 tokens after the chat template. What differs comes first, so that nobody's prefix cache helps.
_PROMPT = (
    "Number {number}: tell a very long story about a lighthouse keeper, a fox and the sea. Begin in "
    "winter, describe the weather and the house in detail, and let them talk with each other. "
    "Do not come to an end soon; the children want to hear it for the whole evening."
)


@dataclass(frozen=True, slots=True)
class Load:
    """`streams` clients, each with `requests` requests one after the other, `limit_s` at most."""

    streams: int
    requests: int
    limit_s: float


async def _chunks(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[bytes]:
    while chunked:
        size = int(await reader.readline(), 16)
        data = await reader.readexactly(size)
        await reader.readline()
        if not size:
            return
        yield data
    while data := await reader.read(65_536):
        yield data


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    status = await reader.readline()
    if b" 200 " not in status:
        raise ConnectionError(status.decode(errors="replace").strip())
    chunked = False
    while line := (await reader.readline()).strip().lower():
        chunked = chunked or line == b"transfer-encoding: chunked"
    unread = b""
    async for chunk in _chunks(reader, chunked=chunked):
        *lines, unread = (unread + chunk).split(b"\n")
        for raw in lines:
            data = raw.strip().removeprefix(b"data:").strip()
            if data.startswith(b"{"):
                yield json.loads(data)


def sse_client(port: int, model: str, tokens: int) -> Client:
    """A client of `/v1/chat/completions` on the loopback."""

    async def ask(prompt: str, timing: Timing) -> None:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            )
            writer.write(head.encode() + data)
            async for event in _events(reader):
                for choice in event.get("choices") or ():
                    if (choice.get("delta") or {}).get("content"):
                        timing.heard(now())
                if usage := event.get("usage"):
                    timing.tokens = usage["completion_tokens"]
        finally:
            writer.transport.abort()
        timing.finished = bool(timing.arrivals)

    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[Ask]:
        yield ask

    return client


def websocket_client(port: int, tokens: int) -> Client:
    """Our own SDK; a client keeps its connection for all its requests."""

    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[Ask]:
        async with AsyncSeedanceClient(f"ws://127.0.0.1:{port}") as sdk:
            await sdk.connect()

            async def ask(prompt: str, timing: Timing) -> None:
                messages = [{"role": "user", "content": prompt}]
                stream = sdk.chat(messages, max_tokens=tokens, temperature=0)
                async for chunk in stream:
                    timing.heard(now(), chunk.tokens)
                timing.finished = True

            yield ask

    return client


async def measure_round(server: str, client: Client, load: Load) -> Round:
    """All clients at once, after one request that warms up."""
    timings: list[Timing] = []
    failures = 0
    number = int(now() * 1e6) % 10_000_000

    async def work(ask: Ask) -> None:
        nonlocal failures, number
        for _ in range(load.requests):
            number += 1
            timing = Timing(now())
            timings.append(timing)
            try:
                await ask(_PROMPT.format(number=number), timing)
            except (OSError, EOFError, ValueError, KeyError, SeedanceError):
                failures += 1

    async with contextlib.AsyncExitStack() as stack:
        asks = [await stack.enter_async_context(client()) for _ in range(load.streams)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(load.limit_s):
                await asks[0](_PROMPT.format(number=number), Timing(now()))
        begun = now()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(load.limit_s):
                await asyncio.gather(*(work(ask) for ask in asks))
        return Round(server, load.streams, begun, now(), timings, failures)
