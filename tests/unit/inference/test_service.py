"""What leaves the engine's thread for the calls."""

from __future__ import annotations

import asyncio

from inference.call import Call
from inference.engine.answer import Piece
from inference.engine.messages import CallOutput, Hold, StepOutput, Tokens
from inference.engine.timing import Marks
from inference.outbox import TOKENS_MAX
from inference.service import Deliverer
from mesh.clock import SystemClock


def _step(call: Call, count: int) -> StepOutput:
    piece = Piece(0, [1] * count, 0, b"", [], [0] * count)
    return StepOutput(
        calls={call.id: CallOutput(tokens=[Tokens(call.key(1), piece, Marks(0, 0, 0))])}
    )


async def test_a_full_call_is_held_at_every_step_that_brings_more() -> None:
    """A writer that lets go at the same moment cannot undo the hold for good."""
    deliverer = Deliverer(asyncio.get_running_loop(), SystemClock(), lambda _: None)
    call = Call(1, trusted=True)
    deliverer.calls[1] = call
    assert deliverer.deliver(_step(call, 1)) == []
    assert deliverer.deliver(_step(call, TOKENS_MAX)) == [Hold(1, on=True)]
    assert call.held
    # The writer's release of an earlier hold came after ours: the engine made one step more.
    assert deliverer.deliver(_step(call, 1)) == [Hold(1, on=True)]
