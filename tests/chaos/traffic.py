"""The load, and what each of its streams must say whatever goes wrong."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

from seedance import SeedanceError
from seedance.client import AsyncSeedanceClient, ChatOptions
from seedance.protocol.frames import Usage
from seedance.protocol.reconnect import Backoff
from tests.support.scripts import SPLIT_WORDS, script_messages

__all__ = ["ENGINES", "Outcome", "Request", "Traffic", "ask"]

STREAMS_PER_CLIENT_MAX = 3
# A session lives through many faults; this share of clients begins a new one after a run.
NEW_SESSION_SHARE = 0.1
# Quicker than a person's program would be, and more patient: the faults are ours.
BACKOFF = Backoff(base_s=0.1, max_s=1.0, tries_max=80)
STREAM_WITHIN_S = 90.0


@dataclass(frozen=True, slots=True)
class Request:
    """One kind of request, always asked in the same words."""

    name: str
    stream: bool
    options: ChatOptions
    messages: list[dict[str, str]] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client had of one stream; `error` where it did not end well."""

    request: str
    stream: str
    text: str
    usage: Usage | None
    finish_reason: str | None
    error: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the text's UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def _script(
    name: str, dt_ms: float, repeat: int, *, stream: bool = True, **options: Any
) -> Request:
    messages = script_messages(SPLIT_WORDS, dt_ms=dt_ms, repeat=repeat)
    return Request(name, stream, ChatOptions(**options), messages)


def _native(name: str, question: str, *, stream: bool = True, **options: Any) -> Request:
    chosen = ChatOptions(max_tokens=32, ignore_eos=True, **options)
    return Request(name, stream, chosen, [{"role": "user", "content": question}])


ENGINES: dict[str, tuple[Request, ...]] = {
    "script": (
        _script("calm", 10, 15),
        _script("brisk", 4, 40),
        _script("flood", 0, 60),
        _script("bursts of a window", 1, 100),
        _script("whole", 6, 25, stream=False),
        _script("whole at once", 0, 50, stream=False),
        _script("cut by length", 8, 60, max_tokens=101),
        _script("stop string never said", 8, 15, stop=["Hello w", "nothing"]),
        _script("stopped", 8, 30, stop="\n\n量. Hello 😁 wö", min_tokens=90),
        _script("with logprobs", 8, 15, logprobs=2),
    ),
    "native": (
        _native("greedy", "Why is the sky blue?", temperature=0.0),
        _native("seeded", "Tell me of the sea.", temperature=0.9, seed=11),
        _native("narrow", "List three rivers.", temperature=0.7, top_p=0.8, top_k=20, seed=5),
        _native("whole", "What is a mesh?", stream=False, temperature=0.0),
        _native("penalised", "Say it again.", temperature=0.5, seed=3, frequency_penalty=0.7),
        _native("with logprobs", "Name a colour.", temperature=0.0, logprobs=2),
    ),
}


async def ask(client: AsyncSeedanceClient, request: Request) -> Outcome:
    """Run one stream to its end."""
    asking = _streamed if request.stream else _whole
    try:
        async with asyncio.timeout(STREAM_WITHIN_S):
            return await asking(client, request)
    except TimeoutError:
        return Outcome(request.name, "", "", None, None, f"not within {STREAM_WITHIN_S:g} s")


async def _streamed(client: AsyncSeedanceClient, request: Request) -> Outcome:
    running = client.chat(request.messages, **request.options)
    text, error = "", ""
    try:
        async for chunk in running:
            text += chunk.delta
    except SeedanceError as refused:
        error = f"{refused.code.value}: {refused}"
    return Outcome(request.name, running.id, text, running.usage, running.finish_reason, error)


async def _whole(client: AsyncSeedanceClient, request: Request) -> Outcome:
    try:
        done = await client.chat(request.messages, stream=False, **request.options)
    except SeedanceError as refused:
        error = f"{refused.code.value}: {refused}"
        return Outcome(request.name, refused.stream_id or "", "", None, None, error)
    return Outcome(request.name, done.id, done.text, done.usage, done.finish_reason)


class Traffic:
    """Clients, each with a session, that ask for several streams at once."""

    def __init__(self, url: str, engine: str, clients: int, rng: random.Random) -> None:
        self._url = url
        self._requests = ENGINES[engine]
        self._rng = rng
        self._clients = [self._client() for _ in range(clients)]

    def _client(self) -> AsyncSeedanceClient:
        subprotocol = self._rng.choice(("json", "proto", "proto.zstd"))
        return AsyncSeedanceClient(self._url, subprotocol=subprotocol, backoff=BACKOFF)

    async def calm(self) -> list[Outcome]:
        """Every request once, undisturbed: what it must say from then on."""
        return [await ask(self._clients[0], request) for request in self._requests]

    async def wave(self) -> list[Outcome]:
        """A few streams of every client at once; returns when all have ended."""
        asked = [
            (client, self._rng.choice(self._requests))
            for client in self._clients
            for _ in range(self._rng.randint(1, STREAMS_PER_CLIENT_MAX))
        ]
        return list(await asyncio.gather(*(ask(client, request) for client, request in asked)))

    async def between(self) -> None:
        """Some clients leave, and new ones come."""
        for index, client in enumerate(self._clients):
            if self._rng.random() < NEW_SESSION_SHARE:
                await client.close()
                self._clients[index] = self._client()

    async def close(self) -> None:
        """All leave."""
        for client in self._clients:
            await client.close()
