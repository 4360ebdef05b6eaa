"""A lagging call's output merges and stays bounded."""

from __future__ import annotations

from inference.engine.answer import FinishReason, Piece
from inference.engine.messages import CallOutput, Done, Failed, StreamKey, Tokens
from inference.engine.timing import Marks
from inference.outbox import MESSAGE_TEXT_BYTES_MAX, REFUSALS_MAX, TOKENS_MAX, Outbox
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Usage

MARKS = Marks(0, 0, 0)


def _tokens(stream: int, index: int, text: bytes = b"a") -> Tokens:
    return Tokens(StreamKey(1, stream), Piece(index, [index], index, text, []), MARKS)


def _done(stream: int) -> Done:
    return Done(StreamKey(1, stream), FinishReason.STOP, Usage(), MARKS)


def test_a_reader_that_keeps_up_sees_each_step() -> None:
    """What goes in comes out, and then there is nothing."""
    outbox = Outbox()
    outbox.put(CallOutput(tokens=[_tokens(1, 0)], ends=[_done(1)]), wall_ms=7)
    batch = outbox.take()
    assert [t.piece.ids for t in batch.output.tokens] == [[0]]
    assert len(batch.output.ends) == 1
    assert batch.wall_ms == 7
    assert not outbox.take()


def test_steps_that_nobody_took_merge_per_stream() -> None:
    """One entry per stream, ids and text in order, nothing dropped."""
    outbox = Outbox()
    for index in range(5):
        outbox.put(CallOutput(tokens=[_tokens(1, index), _tokens(2, index, b"b")]), wall_ms=0)
    one, two = outbox.take().output.tokens
    assert one.piece == Piece(0, [0, 1, 2, 3, 4], 0, b"aaaaa", [], [1, 1, 1, 1, 1])
    assert two.piece.text == b"bbbbb"


def test_it_is_full_at_its_bound_and_not_after_a_take() -> None:
    """Then the call's streams pause until it has been taken."""
    outbox = Outbox()
    for index in range(TOKENS_MAX + 1):
        assert not outbox.is_full
        outbox.put(CallOutput(tokens=[_tokens(1, index)]), wall_ms=0)
    assert outbox.is_full
    outbox.take()
    assert not outbox.is_full


def test_a_message_is_bounded_and_no_end_overtakes_its_text() -> None:
    """What does not fit comes in the next message, its stream's end with it."""
    outbox = Outbox()
    large = b"x" * MESSAGE_TEXT_BYTES_MAX
    outbox.put(
        CallOutput(
            tokens=[_tokens(1, 0, large), _tokens(2, 0)], ends=[_done(2), _done(1), _done(3)]
        ),
        wall_ms=0,
    )
    first, second = outbox.take().output, outbox.take().output
    assert [t.stream.stream for t in first.tokens] == [1]
    assert [e.stream.stream for e in first.ends] == [1, 3]
    assert [t.stream.stream for t in second.tokens] == [2]
    assert [e.stream.stream for e in second.ends] == [2]
    assert not outbox.take()


def test_refusals_are_bounded() -> None:
    """A caller that never reads its errors is read no further."""
    outbox = Outbox()
    failed = Failed(StreamKey(1, 1), SeedanceError(ErrorCode.BAD_REQUEST, "no"))
    for _ in range(REFUSALS_MAX):
        assert outbox.has_room_for_refusals
        outbox.refuse(failed)
    assert not outbox.has_room_for_refusals
