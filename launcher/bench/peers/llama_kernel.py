"""llama.cpp's step by itself, run by a Python that has llama-cpp-python: `FILE THREADS [q4_0]`; prints JSON.

With `q4_0` the file is quantized to that first, which is llama.cpp's fast path. It imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import llama_cpp as llama

__all__ = ["main"]

CONTEXT = 256
BATCHES = (1, 16, 64)
STEPS = 16
PREFILLS = 4
UBATCH = 512
MOSTLY_Q4_0 = 2


def _quantized(path: str, folder: str) -> str:
    parameters = llama.llama_model_quantize_default_params()
    parameters.ftype = MOSTLY_Q4_0
    parameters.allow_requantize = True
    made = os.path.join(folder, "q4_0.gguf")  # noqa: PTH118 - as the C side wants it
    if llama.llama_model_quantize(path.encode(), made.encode(), parameters):
        raise SystemExit("llama.cpp could not quantize the file")
    return made


def _context(path: str, threads: int) -> Any:
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    parameters = llama.llama_context_default_params()
    parameters.n_ctx = max(BATCHES) * (CONTEXT + 2 * STEPS * len(BATCHES))
    parameters.n_batch = parameters.n_ubatch = UBATCH
    parameters.n_seq_max = max(BATCHES)
    parameters.n_threads = parameters.n_threads_batch = threads
    context = llama.llama_init_from_model(model, parameters)
    if not model or not context:
        raise SystemExit("llama.cpp could not load the file")
    return context


def _decode(context: Any, batch: Any, rows: list[tuple[int, int, int, bool]]) -> float:
    """Compute rows of (token, position, sequence, wants logits); seconds that it took."""
    batch.n_tokens = len(rows)
    for index, (token, position, sequence, logits) in enumerate(rows):
        batch.token[index], batch.pos[index] = token, position
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        batch.logits[index] = logits
    begun = time.perf_counter()
    if llama.llama_decode(context, batch):
        raise SystemExit("llama.cpp could not compute the batch")
    llama.llama_synchronize(context)
    return time.perf_counter() - begun


def main() -> None:
    """Prefill, give every sequence a copy of it, then decode the first 1, 16, 64 of them together."""
    path, threads = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        if "q4_0" in sys.argv[3:]:
            path = _quantized(path, folder)
        llama.llama_backend_init()
        context = _context(path, threads)
        memory = llama.llama_get_memory(context)
        batch = llama.llama_batch_init(UBATCH, 0, 1)
        ids = [100 + (n * 37) % 20_000 for n in range(CONTEXT)]
        prefills = []
        for _ in range(PREFILLS):
            llama.llama_memory_seq_rm(memory, 0, -1, -1)
            rows = [(token, at, 0, at == CONTEXT - 1) for at, token in enumerate(ids)]
            prefills.append(_decode(context, batch, rows))
        for sequence in range(1, max(BATCHES)):
            llama.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        steps, at = {}, [CONTEXT] * max(BATCHES)
        for size in BATCHES:
            times = []
            for step in range(STEPS):
                rows = [(1000 + step, at[sequence], sequence, True) for sequence in range(size)]
                times.append(_decode(context, batch, rows))
                at[:size] = [position + 1 for position in at[:size]]
            steps[str(size)] = statistics.median(times) * 1e3
    print(json.dumps({"step_ms": steps, "prefill_per_s": CONTEXT / statistics.median(prefills)}))


if __name__ == "__main__":
    main()
