"""An answer as it was sent, for whoever reads it from the beginning: in memory, and as the store has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import zstandard
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from gateway.openai.sse import STALL_S
from seedance.protocol.request import bad_field

__all__ = ["IDEMPOTENCY_HEADER", "REPLAYED_HEADER", "Recording"]

IDEMPOTENCY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
# An answer is kept whole; streamed, it has some 200 bytes for each token.
ANSWER_BYTES_MAX = 4 * 1024 * 1024


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Recording:
    """An answer's ASGI messages, kept for whoever reads them from the beginning.

    To the generation it is the client (`send`, `receive`), one that goes away when nobody has read
    for `patience_s`. `body` is the hash of what was asked; `replayed`: it came out of the store.
    """

    def __init__(self, body: str, patience_s: float) -> None:
        self.body = body
        self.ended = False
        self.replayed = False
        self._patience_s = patience_s
        self._messages: list[Message] = []
        self._bytes = 0
        self._readers = 0
        self._changed = asyncio.Condition()

    @property
    def begun(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._messages)

    async def send(self, message: Message) -> None:
        """Keep a message. Raises `bad_request` when a stream becomes too long to be kept."""
        self._bytes += len(message.get("body", b""))
        if self._bytes > ANSWER_BYTES_MAX and message.get("more_body"):
            raise bad_field(IDEMPOTENCY_HEADER, "left out for an answer of this length")
        self._messages.append(message)
        async with self._changed:
            self._changed.notify_all()

    async def receive(self) -> Message:
        """Say that the client is gone, once nobody reads."""
        async with self._changed:
            while True:
                await self._changed.wait_for(lambda: not self._readers)
                try:
                    async with asyncio.timeout(self._patience_s):
                        await self._changed.wait_for(lambda: self._readers)
                except TimeoutError:
                    return {"type": "http.disconnect"}

    async def end(self) -> None:
        """Nothing follows."""
        self.ended = True
        async with self._changed:
            self._changed.notify_all()

    async def play(self, send: Send, headers: Mapping[str, str]) -> None:
        """Send everything, as it comes; `headers` take the place of the first reader's own."""
        async with self._reading():
            at = 0
            while True:
                while at < len(self._messages):
                    async with asyncio.timeout(STALL_S):
                        await send(self._for_reader(self._messages[at], headers))
                    at += 1
                if self.ended:
                    return
                async with self._changed:
                    await self._changed.wait_for(lambda: self.ended or at < len(self._messages))  # noqa: B023 - awaited here

    def encoded(self) -> bytes:
        """The answer for the store."""
        start, *bodies = self._messages
        body = b"".join(message.get("body", b"") for message in bodies)
        answer = _Answer(start["status"], [tuple(pair) for pair in start["headers"]], body)
        return zstandard.compress(msgspec.msgpack.encode(answer))

    async def replay(self, encoded: bytes) -> None:
        """Be the answer that `encoded` was made of."""
        self.replayed = True
        answer = msgspec.msgpack.decode(zstandard.decompress(encoded), type=_Answer)
        await self.send(
            {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        )
        await self.send({"type": "http.response.body", "body": answer.body})

    def _for_reader(self, message: Message, headers: Mapping[str, str]) -> Message:
        if message["type"] != "http.response.start":
            return message
        own = MutableHeaders(raw=list(message["headers"]))
        own.update(headers)
        if self.replayed:
            own[REPLAYED_HEADER] = "true"
        return {**message, "headers": own.raw}

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        self._readers += 1
        try:
            async with self._changed:
                self._changed.notify_all()
            yield
        finally:
            self._readers -= 1
            async with self._changed:
                self._changed.notify_all()
