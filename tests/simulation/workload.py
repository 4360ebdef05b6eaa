"""What clients ask for, and what they must hear: users of the real SDK, and the oracle."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from seedance.client.aio import AsyncSeedanceClient
from seedance.client.stream import AsyncStream
from seedance.client.subprotocols import SubprotocolChoice
from seedance.protocol.errors import SeedanceError
from seedance.protocol.reconnect import Backoff
from tests.simulation.checkers import Watch
from tests.simulation.loop import Host
from tests.support.engine_driver import script_driver
from tests.support.scripts import script_messages

__all__ = ["Asked", "Oracle", "User", "draw_asked"]

# Tokens as models have them: words, code points cut in two or four, paragraphs, nothing at all,
# bytes that are no UTF-8, and the letters that the stop strings are made of.
TOKENS = (
    *(b"one", b" two", b"\xf0\x9f", b"\x98\x80", b"\xf0", b"\x9f", b"\x8c", b"\xb6", b".\n\n", b""),
    *(b"S", b"TO", b"P", b" \xe4\xbd\xa0\xe5\xa5\xbd", b"\xff", b'"\\\x01', b" and so on"),
)
STOPS: tuple[tuple[str, ...], ...] = ((), (), (), ("STOP",), ("two and", "STOPS"), ("\U0001f600",))
QUICK = Backoff(base_s=0.1, max_s=1.0, tries_max=60)


@dataclass(frozen=True)
class Asked:
    """One request, and how its reader behaves."""

    tokens: tuple[bytes, ...]
    dt_ms: float
    first_ms: float
    options: dict[str, Any]
    stream: bool
    begins_s: float
    pause_s: float
    cancel_after: int | None


@dataclass
class Oracle:
    """The undisturbed answer: text, finish reason, and the tokens whose text is framed."""

    text: str
    reason: str
    tokens: int

    @classmethod
    def of(cls, asked: Asked) -> Oracle:
        """Play the script alone."""
        driver = script_driver()
        limits = {k: v for k, v in asked.options.items() if k in ("stop", "max_tokens")}
        heard = driver.play(1, list(asked.tokens), **limits)
        driver.run()
        total = framed = 0
        for piece, count in zip(heard.pieces, heard.piece_tokens, strict=True):
            total += count
            framed = total if piece else framed
        return cls(heard.text.decode(), heard.reason.value, framed)


def draw_asked(dice: random.Random) -> Asked:
    """A request."""
    count = dice.choice((1, 5, 20, 40, 150))
    options: dict[str, Any] = {"stop": dice.choice(STOPS)}
    if dice.random() < 0.2:
        options["max_tokens"] = dice.randint(1, count + 5)
    if dice.random() < 0.15:
        options["logprobs"] = dice.randint(0, 1)
    if dice.random() < 0.15:
        options["on_disconnect"] = dice.choice(("cancel", "keep"))
    if dice.random() < 0.2:
        options["priority"] = dice.randint(0, 9)
    return Asked(
        tokens=tuple(dice.choice(TOKENS) for _ in range(dice.randint(1, count))),
        dt_ms=dice.choice((0, 1, 1, 5, 5, 20, 20, 50, 300)),
        first_ms=dice.choice((0, 0, 0, 30, 300)),
        options=options,
        stream=dice.random() < 0.8,
        begins_s=dice.random() * dice.choice((0.01, 1, 3)),
        pause_s=dice.choice((0, 0, 0, 0.02, 0.3)),
        cancel_after=dice.randint(0, 20) if dice.random() < 0.1 else None,
    )


@dataclass
class Answer:
    """What a user heard of one request."""

    asked: Asked
    oracle: Oracle
    id: str = ""
    text: str = ""
    tokens: int = 0
    reason: str = ""
    billed: int | None = None
    error: SeedanceError | None = None
    stood: bool = False
    lost_connection: bool = False

    @property
    def ended(self) -> bool:
        """Whether its user has heard how it ended."""
        return bool(self.reason) or self.error is not None

    @property
    def may_be_cut(self) -> bool:
        """Whether it may end as `cancelled`, with a part of the text."""
        dropped = self.asked.options.get("on_disconnect") == "cancel" and self.lost_connection
        return self.asked.cancel_after is not None or dropped


@dataclass
class User:
    """One person with one client and several requests, on a machine of their own."""

    name: str
    url: str
    watch: Watch
    dice: random.Random
    answers: list[Answer] = field(default_factory=list)
    stood: bool = False
    offline_since: float | None = None
    offline_s: float = 0.0

    def __post_init__(self) -> None:
        self.host = Host(self.name)
        self.over = asyncio.Event()
        self.goes_s = self.dice.random() * 2 if self.dice.random() < 0.15 else None
        self.subprotocol: SubprotocolChoice = self.dice.choice(("json", "proto", "proto.zstd"))
        self.stalls = self.dice.random() < 0.25
        self.backoff = self.dice.choice((None, QUICK, QUICK))
        requests = [draw_asked(self.dice) for _ in range(self.dice.randint(1, 3))]
        self.answers = [Answer(asked, Oracle.of(asked)) for asked in requests]
        self._client: AsyncSeedanceClient | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Ask for everything and read it to its end."""
        self._client = AsyncSeedanceClient(
            self.url,
            subprotocol=self.subprotocol,
            backoff=self.backoff,
            on_state=self._on_state,
        )
        async with asyncio.TaskGroup() as tasks:
            for answer in self.answers:
                tasks.create_task(self._one(self._client, answer))
        self.over.set()

    async def leave(self) -> None:
        """Close the session."""
        if self._client is not None:
            await self._client.close()

    def _on_state(self, state: str) -> None:
        assert self._client is not None
        self.watch.tell(f"{self.name}: {state}")
        session = self._client._machine.session
        if state == "open" and session is not None:
            self.stood = True
            self.watch.epoch_seen(session.session, session.epoch)
            self._back()
        elif state == "connecting":
            for answer in self.answers:
                answer.lost_connection = True
            # A cut that was not noticed began when the last word came.
            self.offline_since = self.offline_since or self.host.heard_at or self._loop.time()
        elif state == "idle":  # it was told that its session is gone
            self._back()

    def _back(self) -> None:
        if self.offline_since is not None:
            away_s = self._loop.time() - self.offline_since + self.host.slept_s
            self.offline_s = max(self.offline_s, away_s)
        self.offline_since = None

    async def _one(self, client: AsyncSeedanceClient, answer: Answer) -> None:
        asked = answer.asked
        await asyncio.sleep(asked.begins_s)
        messages = script_messages(asked.tokens, dt_ms=asked.dt_ms, first_ms=asked.first_ms)
        options = {"model": "script", **asked.options}
        try:
            if asked.stream:
                await self._read(client.chat(messages, **options), answer)
            else:
                done = await client.chat(messages, stream=False, **options)
                answer.id, answer.text, answer.reason = done.id, done.text, done.finish_reason
                answer.tokens = answer.billed = done.usage.completion_tokens
        except SeedanceError as error:
            answer.error = error
            answer.id = error.stream_id or answer.id
        answer.stood = self.stood
        self.watch.tell(
            f"{self.name}: {answer.id} ended {answer.reason or answer.error!r} "
            f"{len(answer.text)}/{len(answer.oracle.text)}"
        )

    async def _read(self, stream: AsyncStream, answer: Answer) -> None:
        asked, oracle = answer.asked, answer.oracle
        answer.id = stream.id
        chunks = 0
        if asked.cancel_after == 0:
            stream.cancel()
        async for chunk in stream:
            if chunk.offset != len(answer.text.encode()):
                self.watch.breach(f"{self.name}: {stream.id} at {chunk.offset} is out of place")
            answer.text += chunk.delta
            answer.tokens += chunk.tokens
            if not oracle.text.startswith(answer.text):
                self.watch.breach(
                    f"{self.name}: {answer.text!r} is no beginning of {oracle.text!r}"
                )
            chunks += 1
            if chunks == asked.cancel_after:
                stream.cancel()
            if asked.pause_s:
                await asyncio.sleep(asked.pause_s)
        answer.reason = stream.finish_reason or ""
        answer.billed = stream.usage.completion_tokens if stream.usage else None
