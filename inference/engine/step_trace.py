"""Where each step's time goes, as a Chrome trace (chrome://tracing, https://ui.perfetto.dev)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.engine.plan import StepPlan

__all__ = ["StepTrace"]

# About 300 MB: a trace that was forgotten must not fill the disk.
STEPS_MAX = 1_000_000


class StepTrace:
    """Writes one event per stage of each step (plan, compute, emit) to a file, as they happen.

    The compute event says for each row which tokens it computed in which KV blocks. The file is a
    JSON array that both viewers read also when its end is missing.
    """

    def __init__(self, path: Path, block_size: int) -> None:
        """Raises `OSError` when the file cannot be written."""
        self._file = path.open("w", encoding="utf-8")
        self._file.write("[\n")
        self._block_size = block_size
        self._steps = 0

    def step(self, plan: StepPlan, instants: tuple[float, float, float, float]) -> None:
        """One step: when it began, was planned, was computed, and had emitted; in seconds."""
        if self._steps >= STEPS_MAX:
            return
        self._steps += 1
        begun, planned, computed, emitted = instants
        rows = [
            {
                "sequence": row.sequence_id,
                "start": row.start,
                "tokens": len(row.token_ids),
                "sample": row.sample,
                "blocks": self._blocks(row.start, len(row.token_ids), row.block_table),
            }
            for row in plan.rows
        ]
        self._write("plan", begun, planned, {"rows": len(rows), "tokens": plan.token_count})
        self._write("compute", planned, computed, {"rows": rows})
        self._write("emit", computed, emitted, {})

    def close(self) -> None:
        """Finish the file."""
        self._file.write("{}]\n")
        self._file.close()

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
