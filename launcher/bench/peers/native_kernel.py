"""The native step by itself, in a process of its own: `python -m … FILE THREADS`; prints JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from inference.engine.plan import PlanRow, StepPlan
from inference.model.load import load_model
from seedance.protocol.request import Sampling

__all__ = ["main"]

CONTEXT = 256
BATCHES = (1, 16, 64)
STEPS = 16
PREFILLS = 4
BLOCK = 64
BLOCKS_EACH = (CONTEXT + STEPS) // BLOCK + 1
_GREEDY = Sampling(temperature=0)


def _row(sequence: int, ids: list[int], start: int) -> PlanRow:
    table = list(range(sequence * BLOCKS_EACH, (sequence + 1) * BLOCKS_EACH))
    return PlanRow(sequence, ids, start, table, True, _GREEDY, 0, 0, [], [])


def main() -> None:
    """Prefill some sequences, then decode 1, 16, 64 together: what a cache holds costs the same to read."""
    path, threads = Path(sys.argv[1]), int(sys.argv[2])
    blocks = max(BATCHES) * BLOCKS_EACH
    runner, _ = load_model(
        path,
        name="bench",
        kv_blocks=blocks,
        block_size=BLOCK,
        threads=threads,
        cpu_backend="native",
    )
    prompt = [100 + (n * 37) % 20_000 for n in range(CONTEXT)]
    prefills = []
    for sequence in range(PREFILLS):
        begun = time.perf_counter()
        runner.run(StepPlan([_row(sequence, prompt, 0)]))
        prefills.append(time.perf_counter() - begun)
    steps = {}
    for batch in BATCHES:
        times = []
        for step in range(STEPS):
            rows = [_row(sequence, [1000 + step], CONTEXT + step) for sequence in range(batch)]
            begun = time.perf_counter()
            runner.run(StepPlan(rows))
            times.append(time.perf_counter() - begun)
        steps[str(batch)] = statistics.median(times) * 1e3
    runner.close()
    print(json.dumps({"step_ms": steps, "prefill_per_s": CONTEXT / statistics.median(prefills)}))


if __name__ == "__main__":
    main()
