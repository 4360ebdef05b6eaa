"""Who runs, and when the paced ones are due."""

from __future__ import annotations

from inference.engine.batch import STALE_MAX, Batch
from inference.engine.sequence import Pace, Sequence, SequenceState


def _decoding(sequence_id: int, due: float = 0.0) -> Sequence:
    return Sequence(
        id=sequence_id,
        prompt_ids=[1],
        answer_ids=[],
        arrival=0.0,
        pace=Pace(due, 1.0),
        _state=SequenceState.DECODE,
    )


def test_only_who_is_due_decodes() -> None:
    """The others sleep until the earliest of them is due."""
    batch = Batch()
    now, soon, later = _decoding(1), _decoding(2, due=2.0), _decoding(3, due=3.0)
    for sequence in (later, soon, now):
        batch.add(sequence)
    assert batch.decodable(0.0) == [now]
    assert batch.next_due(0.0) == 2.0
    assert batch.decodable(2.5) == [now, soon]
    assert batch.next_due(2.5) == 3.0
    batch.check()
    assert len(batch) == 3


def test_who_leaves_in_its_sleep_is_not_woken() -> None:
    """Its entry in the heap is stale, also when it has come back with another time."""
    batch = Batch()
    sequence = _decoding(1, due=2.0)
    batch.add(sequence)
    assert batch.decodable(0.0) == []
    batch.remove(sequence)
    assert batch.next_due(0.0) is None
    sequence.pace.due = 5.0
    batch.add(sequence)
    assert batch.decodable(3.0) == []
    assert batch.decodable(5.0) == [sequence]
    assert len(batch) == 1


def test_stale_entries_do_not_pile_up() -> None:
    """Thousands that left long before they were due are forgotten."""
    batch = Batch()
    for number in range(1000):
        sequence = _decoding(number, due=1e6)
        batch.add(sequence)
        batch.decodable(0.0)
        batch.remove(sequence)
    batch.decodable(0.0)
    assert len(batch._due) <= STALE_MAX


def test_a_prefilled_sequence_decodes() -> None:
    """It moves over, and can be removed from either place."""
    batch = Batch()
    sequence = Sequence(1, [1], [], 0.0, _state=SequenceState.PREFILL)
    batch.add(sequence)
    assert list(batch.prefilling) == [1]
    batch.prefilled(sequence)
    batch.check()
    assert batch.decodable(0.0) == [sequence]
    batch.remove(sequence)
    assert len(batch) == 0
