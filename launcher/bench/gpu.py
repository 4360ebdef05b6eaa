"""`make bench-gpu`: what a GPU makes of the default model, in under five minutes and without a network.

First whether it says what transformers says, then how fast. Each way to compute is a column: FlashAttention
over pages of 256 tokens, FlexAttention over pages of 64, and the first with `torch.compile`. The
table goes to stdout as Markdown and with all figures, as JSON, into `$OUT` or `build/`.
Exit code 2: there is no GPU; 1: it says something else than transformers.
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.engine.engine import Engine
from inference.engine.limits import EngineLimits
from inference.engine.messages import Open, StreamKey
from inference.engine.plan import PlanRow, StepPlan
from inference.engine.runner import Prepared, Runner
from inference.engine.timing import Marks
from inference.model.backend import GpuOptions
from inference.model.cuda_runner import CudaRunner
from inference.model.load import load_model
from launcher.models import resolve_model
from mesh.clock import SystemClock
from seedance.protocol.request import GenerateRequest, Sampling

__all__ = ["Way", "main", "measure", "table"]

NO_GPU = 2
BUDGET_S = 280
# What the slowest way takes: none is begun when less is left.
LAST_WAY_S = 90
BATCHES = (1, 16, 64, 256)
CONTEXT = 256
PROMPT = 96
CHUNK = 2048
STREAMS = 64
ANSWER = 64
STEPS = 30
WARM_STEPS = 3
EQUALITY = "tests/heavy/test_gpu_equality.py"

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute, a column of the table."""

    name: str
    block_size: int
    torch_compile: bool = False

    def load(self, model: Path) -> Runner:
        """The model on the GPU in bf16."""
        options = GpuOptions(max(BATCHES), self.torch_compile, compile_fallback=False)
        runner, _ = load_model(
            model,
            name="bench",
            dtype="bf16",
            block_size=self.block_size,
            kv_cache_gib=8,
            gpu=options,
        )
        return runner


WAYS = (
    Way("pages of 256", 256),
    Way("pages of 64", 64),
    Way("pages of 256, torch.compile", 256, torch_compile=True),
)


def _row(runner: Runner, index: int, start: int, count: int) -> PlanRow:
    """`count` tokens of a sequence at `start`, in blocks of its own while there are some."""
    info = runner.info
    needed = -(-(start + count) // info.block_size)
    first = index * needed % max(1, info.total_blocks - needed)
    ids = [(7 * (start + place) + 13 * index) % info.vocab_size for place in range(count)]
    blocks = list(range(first, first + needed))
    return PlanRow(index, ids, start, blocks, True, Sampling(temperature=0), 0, 0, [], [])


def _ms(run: Callable[[], object], steps: int) -> float:
    """The median of `steps` runs, the first few not counted."""
    took = []
    for _ in range(WARM_STEPS + steps):
        begin = time.perf_counter()
        run()
        took.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(took[WARM_STEPS:])


def _decode(runner: Runner, batch: int, steps: int) -> Figures:
    plan = StepPlan([_row(runner, index, CONTEXT, 1) for index in range(batch)])
    name = f"decode step of {batch}, ms"
    figures = {name: _ms(lambda: runner.run(plan), steps)}
    if isinstance(runner, CudaRunner):
        figures |= {f"{name}: {stage} alone": took for stage, took in runner.stage_ms.items()}
    return figures


def measure(runner: Runner, batches: tuple[int, ...], chunk: int, steps: int) -> Figures:
    """Steps by hand at `batches` and with a prompt's chunk, then an engine with streams.

    The model's context must hold `chunk`, and each figure is a median of `steps`.
    """
    figures: Figures = {}
    for batch in batches:
        figures |= _decode(runner, batch, steps)
    prefill, prompt = (StepPlan([_row(runner, 0, 0, count)]) for count in (chunk, PROMPT))
    figures[f"prefill by {chunk}, tokens/s"] = chunk / _ms(lambda: runner.run(prefill), steps) * 1e3
    figures[f"prompt of {PROMPT} to first token, ms"] = _ms(lambda: runner.run(prompt), steps)
    return figures | _streams(runner, min(STREAMS, max(batches)), chunk)


def _streams(runner: Runner, streams: int, chunk: int) -> Figures:
    """All at once through an engine: prompts of `PROMPT`, answers of `ANSWER` tokens."""
    clock = SystemClock()
    engine = Engine(runner, EngineLimits(step_tokens_max=chunk, itl_target_ms=1e3), clock)
    begin = clock.monotonic()
    marks = [Marks(begin, begin, begin) for _ in range(streams)]
    greedy = Sampling(temperature=0)
    for index, mark in enumerate(marks):
        ids = _row(runner, index, 0, PROMPT).token_ids
        request = GenerateRequest(
            prompt_token_ids=tuple(ids), sampling=greedy, max_tokens=ANSWER, ignore_eos=True
        )
        prepared = Prepared(ids, lambda _token_id: b"x")
        engine.apply([Open(StreamKey(1, index), f"g{index}", request, prepared, mark)])
    ended = 0
    while ended < streams:
        output = engine.step()
        ended += len(output.ended) if output else 0
    took = clock.monotonic() - begin
    firsts = [((mark.first_token or math.inf) - begin) * 1e3 for mark in marks]
    return {
        f"{streams} streams, tokens/s": engine.token_count / took,
        f"{streams} streams at once, first token, ms (median)": statistics.median(firsts),
        f"{streams} streams at once, first token, ms (last)": max(firsts),
    }


def table(columns: dict[str, Figures]) -> str:
    """The figures as Markdown, a column for each way."""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    lines = [f"| | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for name in names:
        cells = (figures.get(name) for figures in columns.values())
        text = " | ".join("" if cell is None else f"{cell:,.2f}" for cell in cells)
        lines.append(f"| {name} | {text} |")
    return "\n".join(lines)


def _equal() -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", EQUALITY]
    # What pytest prints is no part of the table.
    return subprocess.run(command, check=False, stdout=sys.stderr).returncode == 0


def _ways(model: Path, until: float) -> dict[str, Figures]:
    """Each way's figures, as far as the time reaches; one that fails says so and is left out."""
    columns: dict[str, Figures] = {}
    for way in WAYS:
        if time.perf_counter() > until:
            print(f"no time for {way.name}", file=sys.stderr)
            continue
        print(f"measuring {way.name}", file=sys.stderr)
        begin = time.perf_counter()
        try:
            runner = way.load(model)
            loaded = {"load and record, s": time.perf_counter() - begin}
            columns[way.name] = loaded | measure(runner, BATCHES, CHUNK, STEPS)
            runner.close()
        except Exception as error:  # noqa: BLE001 -- the other ways are worth their figures
            print(f"{way.name} failed: {error}", file=sys.stderr)
        torch.cuda.empty_cache()
    return columns


def main() -> None:
    """Measure and report; one argument, a model's path, is measured instead of the default one."""
    if not torch.cuda.is_available():
        print(
            "no GPU here: torch finds no CUDA device, so there is nothing to measure",
            file=sys.stderr,
        )
        sys.exit(NO_GPU)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    until = time.perf_counter() + BUDGET_S - LAST_WAY_S
    model = resolve_model(sys.argv[1] if len(sys.argv) > 1 else None).path
    equal = _equal()
    columns = _ways(model, until)
    about = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "model": model.name,
        "equal to transformers": "yes" if equal else "NO",
    }
    print("\n".join(f"{name}: {value}  " for name, value in about.items()))
    print(f"\n{table(columns)}")
    folder = Path(os.environ.get("OUT") or "build")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(about | {"figures": columns}, indent=2))
    sys.exit(0 if equal and columns else 1)


if __name__ == "__main__":
    main()
