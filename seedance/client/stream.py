"""One generation as its reader sees it: chunks of text, then how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import (
    Accepted,
    Done,
    ErrorFrame,
    SequencedFrame,
    Timing,
    Token,
    TokenLogprob,
    Usage,
)

__all__ = ["BUFFER_BYTES_MAX", "AsyncStream", "Chunk", "Completion", "Inbox"]

# Text that waits for a slow reader. Over it nothing is acknowledged any more, so that the server's
# window closes and the engine rests; what is in flight then still finds room.
BUFFER_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of text. `offset`: bytes of UTF-8 before it; `tokens`: model tokens in it.

    `timestamp` is the server's, Unix milliseconds.
    """

    delta: str
    offset: int
    tokens: int
    timestamp: int
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `finish_reason`: stop, length, cancelled."""

    id: str
    text: str
    finish_reason: str
    usage: Usage
    timing: Timing
    logprobs: tuple[TokenLogprob, ...] | None = None
    receipt: dict[str, Any] | None = None


class Inbox:
    """What arrived of a stream and was not read yet. Filled by the connection, emptied by a reader.

    `on_behind` is told when the buffer fills, and when it has room again.
    """

    def __init__(self, on_behind: Callable[[bool], None]) -> None:
        self.accepted: Accepted | None = None
        self.end: Done | ErrorFrame | None = None
        self._on_behind = on_behind
        self._chunks: deque[Chunk] = deque()
        self._bytes = 0
        self._behind = False
        self._news = asyncio.Event()

    def put(self, frame: SequencedFrame) -> None:
        """Take a frame of this stream."""
        match frame:
            case Token():
                self._chunks.append(
                    Chunk(frame.delta, frame.offset, frame.tokens, frame.timestamp, frame.logprobs)
                )
                self._bytes += len(frame.delta.encode())
                if self._bytes > BUFFER_BYTES_MAX and not self._behind:
                    self._behind = True
                    self._on_behind(True)
            case Accepted():
                self.accepted = frame
            case Done() | ErrorFrame():
                self.end = frame
        self._news.set()

    def take(self) -> list[Chunk]:
        """Everything that waits, possibly nothing."""
        chunks = list(self._chunks)
        self._chunks.clear()
        self._bytes = 0
        if self._behind:
            self._behind = False
            self._on_behind(False)
        return chunks

    async def news(self) -> None:
        """Wait for the next frame, or return at once if one came since the last wait."""
        await self._news.wait()
        self._news.clear()


class AsyncStream:
    """A running generation: `async for chunk in stream`.

    Errors of the server are raised by the iteration as `SeedanceError`. A stream that is left
    alone, or whose `async with` ends, is cancelled. `usage`, `timing` and `finish_reason` are
    there once it ended.
    """

    def __init__(self, stream_id: str, inbox: Inbox, abort: Callable[[], None]) -> None:
        self._id = stream_id
        self._inbox = inbox
        self._abort = abort
        self._ready: deque[Chunk] = deque()

    @property
    def id(self) -> str:
        """The stream's id on the wire."""
        return self._id

    @property
    def accepted(self) -> Accepted | None:
        """Which instance took it, and with which quota; None until then."""
        return self._inbox.accepted

    @property
    def usage(self) -> Usage | None:
        """What is billed, once the stream ended."""
        return self._inbox.end.usage if self._inbox.end else None

    @property
    def timing(self) -> Timing | None:
        """Where the time went, once the stream ended well."""
        return self._inbox.end.timing if isinstance(self._inbox.end, Done) else None

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The signed receipt, once the stream ended well and if one was asked for."""
        return self._inbox.end.receipt if isinstance(self._inbox.end, Done) else None

    @property
    def finish_reason(self) -> str | None:
        """stop, length, cancelled, or error; None while it runs."""
        match self._inbox.end:
            case Done(finish_reason=reason):
                return reason
            case ErrorFrame():
                return "error"
            case None:
                return None

    def cancel(self) -> None:
        """Ask for no more. What is on the way still arrives; then the stream ends."""
        self._abort()

    async def next_chunks(self) -> list[Chunk]:
        """The chunks that wait, at least one; none at all means the end.

        Raises `SeedanceError` where the stream ended with an error.
        """
        while True:
            chunks = self._inbox.take()
            if chunks or isinstance(self._inbox.end, Done):
                return chunks
            self._raise_error()
            await self._inbox.news()

    async def completion(self) -> Completion:
        """Wait for the end; the whole text of what was not iterated over yet."""
        pieces = [chunk.delta async for chunk in self]
        done = self._inbox.end
        assert isinstance(done, Done)  # noqa: S101 - an error was raised by the iteration
        return Completion(
            id=self._id,
            text="".join(pieces) if done.text is None else done.text,
            finish_reason=done.finish_reason,
            usage=done.usage,
            timing=done.timing,
            logprobs=done.logprobs,
            receipt=done.receipt,
        )

    def _raise_error(self) -> None:
        end = self._inbox.end
        if isinstance(end, ErrorFrame):
            raise SeedanceError(
                end.code,
                end.message,
                field=end.field,
                retry_after_ms=end.retry_after_ms,
                stream_id=self._id,
            )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if not self._ready:
            self._ready.extend(await self.next_chunks())
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    def __await__(self) -> Generator[Any, None, Self]:
        """Wait until an instance took it; raises what refused it."""
        return self._taken().__await__()

    async def _taken(self) -> Self:
        while self._inbox.accepted is None and self._inbox.end is None:
            await self._inbox.news()
        self._raise_error()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._abort()

    def __del__(self) -> None:
        # Nobody can read it any more: a generation must not fill the session's window for ever.
        if self._inbox.end is None:
            self._abort()
