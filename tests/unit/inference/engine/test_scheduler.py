"""The scheduler by example; by rules in tests/property."""

from __future__ import annotations

from inference.engine.block_pool import BlockPool
from inference.engine.limits import EngineLimits
from inference.engine.plan import StepPlan
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Pace, Sequence, SequenceState


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


def _shape(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    return [(r.sequence_id, r.start, len(r.token_ids), r.sample) for r in plan.rows]


def _run(scheduler: Scheduler, *sequences: Sequence, now: float = 0.0) -> StepPlan:
    plan = scheduler.plan(now)
    by_id = {s.id: s for s in sequences}
    for row in plan.rows:
        scheduler.computed(by_id[row.sequence_id], len(row.token_ids))
        if row.sample:
            by_id[row.sequence_id].answer_ids.append(2)
    scheduler.places.check()
    return plan


def test_a_long_prompt_is_prefilled_in_chunks_beside_decodes() -> None:
    """One budget: decodes first, then a chunk no longer than running streams can bear."""
    scheduler = _scheduler()
    a = _add(scheduler, 1, 3)
    assert _shape(_run(scheduler, a)) == [(1, 0, 3, True)]
    b = _add(scheduler, 2, 40)
    assert _shape(_run(scheduler, a, b)) == [(1, 3, 1, True), (2, 0, 8, False)]
    assert _shape(_run(scheduler, a, b)) == [(1, 4, 1, True), (2, 8, 8, False)]
    scheduler.places.end(a)
    assert _shape(_run(scheduler, a, b)) == [(2, 16, 24, True)]


def test_waiting_sequences_go_by_priority_then_arrival() -> None:
    """Priority 0 overtakes, equals keep their order, and nobody overtakes who is too large."""
    scheduler = _scheduler(batch_max=1)
    first = _add(scheduler, 1, 2)
    late = _add(scheduler, 3, 2)
    early = _add(scheduler, 2, 2)
    urgent = _add(scheduler, 4, 2, priority=0)
    order = []
    for sequence in (urgent, first, early, late):
        (row,) = _run(scheduler, first, late, early, urgent).rows
        order.append(row.sequence_id)
        scheduler.places.end(sequence)
    assert order == [4, 1, 2, 3]


def test_the_youngest_loses_its_blocks_and_computes_them_again() -> None:
    """CASES 79: with the pool full the older goes on; the younger waits, then starts over."""
    scheduler = _scheduler(blocks=5)
    a, b = _add(scheduler, 1, 7), _add(scheduler, 2, 4)
    _run(scheduler, a, b)
    for _ in range(9):
        _run(scheduler, a, b)
    assert scheduler.places.preemptions >= 1
    assert b.state is SequenceState.WAITING
    assert b.computed == 0
    scheduler.places.end(a)
    plan = _run(scheduler, a, b)
    assert _shape(plan) == [(2, 0, b.total - 1, True)]


def test_a_paused_sequence_keeps_its_blocks_until_somebody_needs_them() -> None:
    """No credit: out of the batch, blocks kept; but one that can run comes first."""
    scheduler = _scheduler(blocks=4)
    a = _add(scheduler, 1, 8)
    _run(scheduler, a)
    scheduler.places.pause(a)
    assert _run(scheduler, a).rows == []
    assert len(a.block_table) == 2
    b = _add(scheduler, 2, 12)
    assert _shape(_run(scheduler, a, b)) == [(2, 0, 12, True)]
    assert a.block_table == []
    scheduler.places.resume(a)
    assert a.state is SequenceState.WAITING


def test_resume_goes_on_where_it_was() -> None:
    """With its blocks kept, the next step is a decode."""
    scheduler = _scheduler()
    a = _add(scheduler, 1, 8)
    _run(scheduler, a)
    scheduler.places.pause(a)
    scheduler.places.resume(a)
    assert _shape(_run(scheduler, a)) == [(1, 8, 1, True)]


def test_the_first_token_waits_until_it_is_due() -> None:
    """A paced prompt is prefilled but for its last token, which chooses the first of the answer."""
    scheduler = _scheduler()
    a = _add(scheduler, 1, 5, pace=Pace(due=1.0, period_s=0.5))
    assert _shape(_run(scheduler, a)) == [(1, 0, 4, False)]
    assert _run(scheduler, a).rows == []
    assert scheduler.next_due(0.0) == 1.0
    assert _shape(_run(scheduler, a, now=1.0)) == [(1, 4, 1, True)]


def test_more_decodes_than_the_batch_take_turns() -> None:
    """After pauses more sequences may be ready than a step takes; none is forgotten."""
    scheduler = _scheduler(batch_max=2)
    sequences = []
    for index in range(4):
        sequence = _add(scheduler, index, 2)
        _run(scheduler, *sequences, sequence)
        scheduler.places.pause(sequence)
        sequences.append(sequence)
    for sequence in sequences:
        scheduler.places.resume(sequence)
    served = [row.sequence_id for _ in range(2) for row in _run(scheduler, *sequences).rows]
    assert sorted(served) == [0, 1, 2, 3]


def test_scarce_blocks_go_to_prompts_and_first_tokens() -> None:
    """Below the low watermark running streams take turns in a quarter of the batch."""
    scheduler = _scheduler(blocks=200, batch_max=8, step_tokens_max=12, prefill_chunk_busy_max=4)
    running = [_add(scheduler, index, 3) for index in range(6)]
    for _ in range(4):
        _run(scheduler, *running)
    begun = _add(scheduler, 10, 60)
    plan = _run(scheduler, *running, begun)
    assert _shape(plan)[-1] == (10, 0, 4, False)
    pool = scheduler.places.pool
    held = pool.allocate(pool.free - 9) or []
    plan = scheduler.plan(0.0)
    # 12 tokens a step: two of the six decode, and the prompt may have the rest.
    assert [len(row.token_ids) for row in plan.rows[:2]] == [1, 1]
    assert plan.rows[2].sequence_id == 10
    assert plan.token_count <= 12
    assert len(plan.rows) == 3
    pool.release(held)
