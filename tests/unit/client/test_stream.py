"""A generation as its reader sees it."""

from __future__ import annotations

import pytest

from seedance.client.stream import BUFFER_BYTES_MAX, AsyncStream, Inbox
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Accepted, Done, ErrorFrame, Timing, Token, Usage


class Reader:
    """A stream whose connection is the test."""

    def __init__(self) -> None:
        self.behind: list[bool] = []
        self.aborts = 0
        self.inbox = Inbox(self.behind.append)
        self.stream = AsyncStream("a", self.inbox, self.abort)
        self.offset = 0

    def abort(self) -> None:
        self.aborts += 1

    def say(self, delta: str, **more: int) -> None:
        self.inbox.put(Token("a", self.offset, delta, 5, **more))
        self.offset += len(delta.encode())

    def end(self) -> None:
        self.inbox.put(Done("a", "length", Usage(1, 0, 2), Timing(total_ms=3)))


async def test_chunks_then_how_it_ended() -> None:
    """Chunks come out as they came in; usage, timing and reason are there at the end."""
    reader = Reader()
    stream = reader.stream
    assert (stream.finish_reason, stream.usage, stream.timing) == (None, None, None)
    reader.say("né", tokens=2)
    reader.say("w")
    reader.end()
    chunks = [chunk async for chunk in stream]
    assert [(c.delta, c.offset, c.tokens) for c in chunks] == [("né", 0, 2), ("w", 3, 1)]
    assert (stream.id, stream.finish_reason, stream.usage) == ("a", "length", Usage(1, 0, 2))
    assert stream.timing == Timing(total_ms=3)
    assert [chunk async for chunk in stream] == []


async def test_an_error_is_raised_after_the_text_before_it() -> None:
    """Text that arrived is not lost to an error; the error is the table's."""
    reader = Reader()
    reader.say("half")
    usage = Usage(1, 0, 1)
    reader.inbox.put(
        ErrorFrame(ErrorCode.UNAVAILABLE, "gone", True, id="a", retry_after_ms=9, usage=usage)
    )
    assert (await anext(reader.stream)).delta == "half"
    with pytest.raises(SeedanceError) as caught:
        await anext(reader.stream)
    error = caught.value
    assert (error.code, error.stream_id, error.retry_after_ms, error.retryable) == (
        ErrorCode.UNAVAILABLE,
        "a",
        9,
        True,
    )
    assert (reader.stream.finish_reason, reader.stream.usage) == ("error", usage)


async def test_waiting_for_a_stream_is_waiting_for_its_instance() -> None:
    """`await stream` gives the stream once it was accepted, or raises what refused it."""
    reader = Reader()
    reader.inbox.put(Accepted("a", "i0", 4, 100))
    taken = await reader.stream
    assert taken.accepted is not None
    assert taken.accepted.instance == "i0"
    refused = Reader()
    refused.inbox.put(ErrorFrame(ErrorCode.OVERLOADED, "full", retryable=True, id="a"))
    with pytest.raises(SeedanceError, match="full"):
        await refused.stream


async def test_a_completion_is_the_whole_text() -> None:
    """The pieces joined, or the text that `done` brought."""
    reader = Reader()
    reader.say("one ")
    reader.say("two")
    reader.end()
    completion = await reader.stream.completion()
    assert (completion.text, completion.finish_reason) == ("one two", "length")
    whole = Reader()
    whole.inbox.put(Done("a", "stop", Usage(), Timing(), text="all at once"))
    assert (await whole.stream.completion()).text == "all at once"


async def test_the_buffer_is_bounded() -> None:
    """At the bound nothing is said; one byte over it the sender is told, and once read, again."""
    reader = Reader()
    reader.say("x" * BUFFER_BYTES_MAX)
    assert reader.behind == []
    reader.say("y")
    reader.say("z")
    assert reader.behind == [True]
    chunks = await reader.stream.next_chunks()
    assert len(chunks) == 3
    assert reader.behind == [True, False]


async def test_a_stream_that_is_left_is_cancelled() -> None:
    """Leaving its `async with`, or dropping it while it runs, asks for no more."""
    reader = Reader()
    async with reader.stream as stream:
        stream.cancel()
    assert reader.aborts == 2
    dropped = Reader()
    del dropped.stream
    assert dropped.aborts == 1
    ended = Reader()
    ended.end()
    del ended.stream
    assert ended.aborts == 0
