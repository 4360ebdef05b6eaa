"""The native step by itself, in a process of its own: `python -m … FILE THREADS`; prints JSON."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from inference.model.load import load_model
from inference.native.runner import NativeRunner
from inference.native.timing import decodes, prompt, step_seconds

__all__ = ["main"]

CONTEXT = 256
BATCHES = (1, 16, 64)
STEPS = 16
PREFILLS = 4
BLOCK = 64


def main() -> None:
    """A prompt alone, then 1, 16, 64 sequences that each decode behind as many tokens."""
    path, threads = Path(sys.argv[1]), int(sys.argv[2])
    runner, _ = load_model(
        path,
        name="bench",
        kv_blocks=max(BATCHES) * (CONTEXT // BLOCK + 1),
        block_size=BLOCK,
        threads=threads,
        cpu_backend="native",
    )
    assert isinstance(runner, NativeRunner)  # noqa: S101 - what `native` is
    prefills = step_seconds(runner, [prompt(CONTEXT, block_size=BLOCK)], PREFILLS)
    steps = {
        str(batch): statistics.median(
            step_seconds(runner, decodes(batch, context=CONTEXT + 1, block_size=BLOCK), STEPS)
        )
        * 1e3
        for batch in BATCHES
    }
    runner.close()
    print(json.dumps({"step_ms": steps, "prefill_per_s": CONTEXT / statistics.median(prefills)}))


if __name__ == "__main__":
    main()
