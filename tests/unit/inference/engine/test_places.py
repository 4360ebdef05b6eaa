"""Where sequences are, and whose the blocks are."""

from __future__ import annotations

from inference.engine.block_pool import BlockPool
from inference.engine.limits import EngineLimits
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Sequence


def _scheduler(blocks: int = 64, **limits: int) -> Scheduler:
    # All prompts are alike here, and none is to be found in another's blocks.
    limits = {"prefix_cache": 0} | limits
    limits = {"batch_max": 4, "step_tokens_max": 32, "prefill_chunk_busy_max": 8} | limits
    return Scheduler(BlockPool(blocks, 4), EngineLimits(**limits))  # type: ignore[arg-type]


def _add(scheduler: Scheduler, sequence_id: int, prompt: int, **fields: object) -> Sequence:
    fields.setdefault("arrival", float(sequence_id))
    sequence = Sequence(
        id=sequence_id,
        prompt_ids=[1] * prompt,
        answer_ids=[],
        **fields,  # type: ignore[arg-type]
    )
    scheduler.places.add(sequence, eligible=True)
    return sequence


def _run(scheduler: Scheduler, *sequences: Sequence) -> None:
    by_id = {s.id: s for s in sequences}
    for row in scheduler.plan(0.0).rows:
        scheduler.computed(by_id[row.sequence_id], len(row.token_ids))
        if row.sample:
            by_id[row.sequence_id].answer_ids.append(2)
    scheduler.places.check()


def test_ending_frees_blocks_at_once() -> None:
    """The pool is whole in the same breath, from every state."""
    scheduler = _scheduler()
    waiting = _add(scheduler, 9, 100, priority=9)
    running = _add(scheduler, 1, 5)
    paused = _add(scheduler, 2, 5)
    _run(scheduler, waiting, running, paused)
    scheduler.places.pause(paused)
    for sequence in (running, paused, waiting):
        scheduler.places.end(sequence)
        scheduler.places.end(sequence)
    assert scheduler.places.pool.free == scheduler.places.pool.total
    assert scheduler.places.running == scheduler.places.queued == 0


def test_parking_takes_the_blocks() -> None:
    """A parked sequence holds nothing and counts as queued."""
    scheduler = _scheduler()
    a = _add(scheduler, 1, 8)
    _run(scheduler, a)
    scheduler.places.park(a)
    assert scheduler.places.pool.free == scheduler.places.pool.total
    assert scheduler.places.queued == 1


def test_places_are_counted() -> None:
    """Waiting, running, paused with blocks and without: each in one place."""
    scheduler = _scheduler(batch_max=2)
    places = scheduler.places
    sequences = [_add(scheduler, index, 5) for index in range(4)]
    _run(scheduler, *sequences)
    assert (places.running, places.waiting, places.queued, places.alive) == (2, 2, 2, 4)
    places.pause(sequences[0])
    places.pause(sequences[3])
    assert (places.running, places.waiting, places.queued, places.alive) == (1, 1, 2, 4)
    places.resume(sequences[0])
    places.resume(sequences[3])
    assert (places.running, places.waiting, places.queued, places.alive) == (2, 2, 2, 4)
    places.check()


def test_paused_sequences_lose_blocks_only_if_that_makes_room() -> None:
    """A prompt that would not fit even then takes nobody's."""
    scheduler = _scheduler(blocks=8)
    running, paused = _add(scheduler, 1, 12), _add(scheduler, 2, 8)
    _run(scheduler, running, paused)
    scheduler.places.pause(paused)
    large = _add(scheduler, 3, 20)
    _run(scheduler, running, paused, large)
    assert len(paused.block_table) == 2
    assert large.block_table == []
    scheduler.places.end(running)
    _run(scheduler, paused, large)
    assert len(large.block_table) == 5
