"""What an instance remembers of a call."""

from __future__ import annotations

from inference.call import ENDED_REMEMBERED_MAX, Call, Preparing
from inference.engine.answer import FinishReason
from inference.engine.messages import CallOutput, Cancel, Credit, Done, Failed, Open
from inference.engine.runner import Prepared
from inference.engine.timing import Marks
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Usage
from seedance.protocol.request import GenerateRequest

ERROR = SeedanceError(ErrorCode.BAD_REQUEST, "no")


def _end(call: Call, stream: int) -> CallOutput:
    return CallOutput(ends=[Done(call.key(stream), FinishReason.STOP, Usage(), Marks(0, 0, 0))])


def test_a_call_is_complete_when_nothing_can_follow() -> None:
    """Its caller asks no more, and its last stream has ended."""
    call = Call(1, trusted=False)
    call.live.add(1)
    call.reading = False
    assert not call.complete
    call.written(_end(call, 1))
    assert call.complete


def test_a_refused_instruction_does_not_end_its_stream() -> None:
    """Only a final failure does."""
    call = Call(1, trusted=False)
    call.live.add(1)
    call.written(CallOutput(ends=[Failed(call.key(1), ERROR, final=False)]))
    assert call.live == {1}
    call.written(CallOutput(ends=[Failed(call.key(1), ERROR)]))
    assert not call.live


def test_ended_streams_are_known_for_a_while() -> None:
    """Instructions that cross an end on the wire are no faults; the memory is bounded."""
    call = Call(1, trusted=False)
    for stream in range(ENDED_REMEMBERED_MAX + 1):
        call.live.add(stream)
        call.written(_end(call, stream))
    assert not call.knows(0)
    assert call.knows(1)
    assert not call.knows(10**6)


def test_what_came_during_preparation_follows_the_opening() -> None:
    """Credits add up, a cancel comes last."""
    call = Call(1, trusted=False)
    opened = Open(
        call.key(1), "g", GenerateRequest(prompt="x"), Prepared([1], bytes), Marks(0, 0, 0)
    )
    assert Preparing().commands(opened) == [opened]
    assert Preparing(credit=5, cancelled=True).commands(opened) == [
        opened,
        Credit(call.key(1), 5),
        Cancel(call.key(1)),
    ]
