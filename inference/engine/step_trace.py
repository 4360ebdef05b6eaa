"""Where each step's time goes, as a Chrome trace (chrome://tracing, https://ui.perfetto.dev)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.engine.generation import Generation
from inference.engine.messages import StepOutput, StreamKey
from inference.engine.plan import PlanRow
from inference.engine.stages import StepTimes

__all__ = ["StepTrace"]

# About 300 MB: a trace that was forgotten must not fill the disk.
STEPS_MAX = 1_000_000


class StepTrace:
    """Writes one event per stage of each step (fetch, compute, absorb, emit) to a file.

    Beside them the runner's wait (`stage_fetch_wait_ms`). The compute event says for each row which
    tokens it computed in which KV blocks, the emit event which tokens of which stream were
    dispatched at its end. A stream is `call/stream`. The file is a JSON array that both
    viewers read also when its end is missing.
    """

    def __init__(self, path: Path, block_size: int) -> None:
        """Raises `OSError` when the file cannot be written."""
        self._file = path.open("w", encoding="utf-8")
        self._file.write("[\n")
        self._block_size = block_size
        self._steps = 0
        self._unwritten: list[tuple[list[tuple[PlanRow, Generation]], StepTimes]] = []

    def absorbed(self, rows: list[tuple[PlanRow, Generation]], times: StepTimes) -> None:
        """A step is complete; it is written with what is emitted next, beside the step after it."""
        if self._steps < STEPS_MAX:
            self._steps += 1
            self._unwritten.append((rows, times))

    def emitted(self, output: StepOutput, begun: float, end: float) -> None:
        """From `begun` to `end` the output was collected."""
        for rows, times in self._unwritten:
            self._step(rows, times)
        self._unwritten.clear()
        tokens = [
            {"stream": _name(t.stream), "index": t.piece.token_index, "tokens": len(t.piece.ids)}
            for part in output.calls.values()
            for t in part.tokens
        ]
        if tokens and self._steps < STEPS_MAX:
            args = {"dispatched": round(end * 1e6, 1), "tokens": tokens}
            self._write("emit", begun, end, args)

    def close(self) -> None:
        """Finish the file."""
        self._file.write("{}]\n")
        self._file.close()

    def _step(self, pairs: list[tuple[PlanRow, Generation]], times: StepTimes) -> None:
        rows = [
            {
                "sequence": row.sequence_id,
                "stream": _name(generation.opened.stream),
                "start": row.start,
                "tokens": len(row.token_ids),
                "sample": row.sample,
                "blocks": self._blocks(row.start, len(row.token_ids), row.block_table),
            }
            for row, generation in pairs
        ]
        args: dict[str, Any] = {
            "fetch_wait": {"stage_fetch_wait_ms": round(times.fetch_wait_s * 1e3, 3)},
            "compute": {"rows": rows},
        }
        for stage, (start, end) in times.spans().items():
            self._write(stage, start, end, args.get(stage, {}))

    def _blocks(self, start: int, count: int, table: list[int]) -> list[int]:
        return table[start // self._block_size : (start + count - 1) // self._block_size + 1]

    def _write(self, name: str, start: float, end: float, args: dict[str, Any]) -> None:
        event = {
            "name": name,
            "ph": "X",
            "ts": round(start * 1e6, 1),
            "dur": round((end - start) * 1e6, 1),
            "pid": 1,
            "tid": name,
            "args": args,
        }
        self._file.write(json.dumps(event) + ",\n")


def _name(stream: StreamKey) -> str:
    return f"{stream.call}/{stream.stream}"
