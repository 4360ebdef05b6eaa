"""How long the native step takes: what a benchmark calls, with nothing of Python in the time.

runner = load_native(library, source, info, threads=2, progress=..., path="avx2")
step_seconds(runner, decodes(64, context=256, block_size=info.block_size), repeats=20)
step_seconds(runner, [prompt(256, block_size=info.block_size)], repeats=10)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from inference.engine.plan import PlanRow, StepPlan
from inference.native.runner import KEY_LANES, NativeRunner
from seedance.protocol.request import Sampling

__all__ = ["decodes", "prompt", "step_seconds"]

# Ids of a vocabulary's middle, spread so that neighbours differ; what they say costs nothing.
FIRST_ID, ID_STRIDE, IDS = 100, 37, 150


def _row(start: int, count: int, first_block: int, block_size: int) -> PlanRow:
    blocks = range(first_block, first_block + (start + count - 1) // block_size + 1)
    return PlanRow(
        sequence_id=first_block,
        token_ids=[FIRST_ID + (start + i) * ID_STRIDE % IDS for i in range(count)],
        start=start,
        block_table=list(blocks),
        sample=True,
        sampling=Sampling(temperature=0.0),
        seed=0,
        answer_position=0,
        answer_ids=[],
        prompt_ids=[],
    )


def decodes(batch: int, *, context: int, block_size: int) -> list[PlanRow]:
    """One token each of `batch` sequences, `context` tokens long with it, in blocks of their own."""
    each = (context - 1) // block_size + 1
    return [_row(context - 1, 1, index * each, block_size) for index in range(batch)]


def prompt(tokens: int, *, start: int = 0, block_size: int) -> PlanRow:
    """A chunk of `tokens` of a prompt, the first at position `start`."""
    return _row(start, tokens, 0, block_size)


def step_seconds(runner: NativeRunner, rows: Sequence[PlanRow], repeats: int) -> list[float]:
    """Seconds of each of `repeats` equal steps, greedy choice included, after one to warm up."""
    # A page that was never written costs nothing to read: here and there a token is computed in
    # each, and what else it holds does not matter to the time.
    earlier = [
        replace(row, token_ids=[FIRST_ID], start=at, sample=False)
        for row in rows
        for at in range(0, row.start, KEY_LANES)
    ]
    runner.forward(StepPlan(earlier))
    step = runner.prepared(StepPlan(list(rows)))
    step.run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        step.run()
        seconds.append(time.perf_counter() - start)
    return seconds
