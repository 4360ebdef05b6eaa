"""Clients of a streaming chat endpoint that count tokens as bytes, whoever serves it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from statistics import median

from launcher.bench.proxies.fake_openai import MODEL

__all__ = ["Heard", "first_token_s", "keep_asking"]

_TEXT = b"quantum"
_DONE = b"data: [DONE]"
READ_BYTES = 65_536
ANSWER_WITHIN_S = 120.0
_BODY = json.dumps(
    {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Say it."}],
        "stream": True,
        "max_tokens": 1_024,
    }
).encode()


@dataclass
class Heard:
    """What all clients heard: tokens, answers that were whole, others."""

    tokens: int = 0
    whole: int = 0
    broken: list[str] = field(default_factory=list)


async def _ask(address: str, heard: Heard) -> float:
    """One request on a connection of its own; the seconds until the first token."""
    loop = asyncio.get_running_loop()
    began, first = loop.time(), 0.0
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (address.encode(), len(_BODY), _BODY)
    )
    last = b""
    try:
        while data := await reader.read(READ_BYTES):
            whole = last[-len(_TEXT) + 1 :] + data
            count = whole.count(_TEXT)
            if count and not first:
                first = loop.time() - began
            heard.tokens += count
            last = last[-200:] + data if len(data) < 200 else data  # noqa: PLR2004 - the end's events
    finally:
        writer.close()
    if _DONE in last and first:
        heard.whole += 1
    else:
        heard.broken.append(last[:200].decode(errors="replace"))
    return first


async def keep_asking(address: str, clients: int, seconds: float, heard: Heard) -> float:
    """So many clients, each with one request after the other; tokens per second."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds

    async def client() -> None:
        while loop.time() < until:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await _ask(address, heard)

    began, had = loop.time(), heard.tokens
    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(client())
    return (heard.tokens - had) / (loop.time() - began)


async def first_token_s(address: str, requests: int, heard: Heard) -> float:
    """The median of one request after the other."""
    return median([await _ask(address, heard) for _ in range(requests)])
