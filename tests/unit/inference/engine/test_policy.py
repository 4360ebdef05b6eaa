"""Who goes first, and who gives way."""

from __future__ import annotations

from inference.engine.policy import rank, victim
from inference.engine.sequence import Sequence, SequenceState


def _holder(
    sequence_id: int, priority: int = 5, state: SequenceState = SequenceState.DECODE
) -> Sequence:
    return Sequence(
        id=sequence_id,
        prompt_ids=[1],
        answer_ids=[],
        arrival=float(sequence_id),
        priority=priority,
        block_table=[sequence_id],
        _state=state,
    )


def test_rank() -> None:
    """Priority, then deadline, then arrival; and each loss of blocks is worth a class."""
    assert min([_holder(1), _holder(2, priority=0)], key=rank).id == 2
    hurried = _holder(3)
    hurried.deadline = 7.0
    assert min([_holder(1), hurried], key=rank).id == 3
    unlucky = _holder(4, priority=6)
    unlucky.preemptions = 2
    assert min([hurried, unlucky], key=rank).id == 4


def test_losing_blocks_comes_to_an_end() -> None:
    """Those that never lost theirs take a sequence's at most `priority` + 1 times."""
    for priority in range(10):
        holder = _holder(100, priority=priority)
        while victim(_holder(1, priority=0), [holder]) is holder:
            holder.preemptions += 1
        assert holder.preemptions == priority + 1


def test_the_least_urgent_gives_way() -> None:
    """The youngest of the lowest priority, never one more urgent than the needy, never itself."""
    needy = _holder(2)
    assert victim(needy, [_holder(1), needy, _holder(3), _holder(4)]).id == 4  # type: ignore[union-attr]
    assert victim(needy, [_holder(1), needy]) is None


def test_a_paused_one_gives_way_first() -> None:
    """Even an older one: it computes nothing now."""
    paused = _holder(1, state=SequenceState.PAUSED)
    assert victim(_holder(2), [paused, _holder(3)]) is paused
    assert victim(None, [paused, _holder(3)]) is paused
    assert victim(None, [_holder(3)]) is None
