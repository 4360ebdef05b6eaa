"""One answer as its server tells it, cut into tokens that another instance can check.

A token is what came in one event. Its id is a checksum of all text up to its end, so that the ids which a
continuation brings are enough to find, in the text that a server says again, where each ended, and to know
that it is the same text.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.engine.runner import Prepared
from inference.openai.wire import Delta
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import GenerateRequest

if TYPE_CHECKING:
    from inference.openai.client import UpstreamClient

__all__ = ["Source", "UpstreamPrepared"]

# Ids lie above any vocabulary, so that none is a stop token's.
_FIRST_ID = 2**30


def _id(checksum: int) -> int:
    return _FIRST_ID | (checksum & (_FIRST_ID - 1))


def _not_repeated() -> SeedanceError:
    return SeedanceError(ErrorCode.UNAVAILABLE, "the model's server did not repeat its answer")


class Source:
    """A generation's side of the server: at most one stream at a time.

    `counts` is what the server counted, once it tells: (prompt, cached, answer) tokens.
    """

    def __init__(self, client: UpstreamClient, request: GenerateRequest) -> None:
        self.finish_reason: str | None = None
        self.counts = (0, 0, 0)
        self._client = client
        self._request = request
        self._deltas: AsyncGenerator[Delta, None] | None = None
        self._checksum = 0
        self._text = b""
        self._spelled: deque[bytes] = deque()

    async def begin(self, known: Sequence[int]) -> None:
        """Begin, unless that is done, after the tokens `known`: the server says them again.

        Raises `unavailable` when it says something else.
        """
        if self._deltas is None:
            self._deltas, self._checksum, self._text = self._client.stream(self._request), 0, b""
            try:
                self._spelled = deque([await self._repeated(token_id) for token_id in known])
            except BaseException:
                await self.close()
                raise

    async def next(self) -> int | None:
        """The next token; None: the server has ended the answer. Raises `SeedanceError`."""
        while not self._text:
            if not await self._hear():
                return None
        self._checksum = zlib.crc32(self._text, self._checksum)
        # What was said again and not asked for is known.
        self._spelled = deque([self._text])
        self._text = b""
        return _id(self._checksum)

    def spell(self, _token_id: int) -> bytes:
        """The bytes of one token after the other: each is asked for once, when it is taken."""
        if not self._spelled:
            raise _not_repeated()
        return self._spelled.popleft()

    def counted(self) -> tuple[int, int]:
        """Tokens of the prompt, and those of them that were cached."""
        return self.counts[:2]

    async def close(self) -> None:
        """Hang up: the server stops."""
        deltas, self._deltas = self._deltas, None
        if deltas is not None:
            await deltas.aclose()

    def drop(self) -> None:
        """Nobody will read on: the event loop closes what is collected."""
        self._deltas = None

    async def _hear(self) -> bool:
        found = None if self._deltas is None else await anext(self._deltas, None)
        if found is None:
            return False
        self._text += found.text.encode()
        self.finish_reason = found.finish_reason or self.finish_reason
        self.counts = found.counts or self.counts
        return True

    async def _repeated(self, token_id: int) -> bytes:
        """The text that leads to this checksum; the server may cut it otherwise than it did before."""
        said = bytearray()
        while True:
            for size in range(1, len(self._text) + 1):
                self._checksum = zlib.crc32(self._text[size - 1 : size], self._checksum)
                if _id(self._checksum) == token_id:
                    said += self._text[:size]
                    self._text = self._text[size:]
                    return bytes(said)
            said += self._text
            self._text = b""
            if not await self._hear():
                raise _not_repeated()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamPrepared(Prepared):
    """A request that somebody else turns into tokens."""

    source: Source
