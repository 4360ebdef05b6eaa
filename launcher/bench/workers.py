"""What a second worker on a gateway's port is worth: tokens, CPU time, and how evenly they share.

Engine, store and client share the machine with the gateway, so on few cores it is the CPU time of a
token that says what more cores would carry, not the rate.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from launcher.bench.figures import cpu_s
from launcher.bench.mesh import running_mesh
from launcher.blueprint import UpOptions
from launcher.loadtest.crowd import Crowd
from launcher.loadtest.load import Load, target_of
from launcher.loadtest.prompts import script_prompts
from launcher.loadtest.run import run
from launcher.loadtest.tally import Tally
from launcher.ports import free_port

__all__ = ["main"]

GATEWAY = "gateway-0"
ENGINE_FLAGS = ("--batch-max", "512", "--step-tokens-max", "8192")
US_PER_S = 1_000_000


@dataclass
class _Row:
    """All rounds with so many workers; `cpu_s` of each worker."""

    workers: int
    tally: Tally = field(default_factory=Tally)
    cpu_s: list[float] = field(default_factory=list)

    def line(self) -> str:
        """As a row of the table."""
        tally, used = self.tally, sum(self.cpu_s)
        shares = ", ".join(f"{cpu / used:.0%}" for cpu in self.cpu_s)
        return (
            f"| {self.workers} | {tally.in_time / tally.elapsed_s:,.0f} "
            f"| {used / tally.elapsed_s:.2f} | {used / tally.tokens * US_PER_S:.1f} | {shares} "
            f"| {tally.gap.quantile(0.99) * 1e3:.0f} | {tally.exact:,}/{tally.asked:,} |"
        )


def _workers_of(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children] or [parent]


async def _round(row: _Row, load: Load, token_ms: float) -> None:
    with tempfile.TemporaryDirectory(prefix="seedance-workers-") as folder:
        options = UpOptions(
            data=Path(folder),
            port=free_port(),
            gateways=1,
            workers=row.workers,
            instances=1,
            engine="script",
            inference_flags=ENGINE_FLAGS,
        )
        async with running_mesh(options) as mesh:
            await mesh.serving()
            target = target_of(
                f"ws://{mesh.specs[GATEWAY].address}", subprotocol="seedance.v2.json"
            )
            pids = _workers_of(mesh.pid(GATEWAY) or 0)
            before = [cpu_s(pid) for pid in pids]
            tally = await run(target, load, script_prompts(load.max_tokens, token_ms), _silent)
            used = [cpu_s(pid) - b for pid, b in zip(pids, before, strict=True)]
    row.tally.merge(tally)
    row.cpu_s = [a + b for a, b in zip(used, row.cpu_s or [0.0] * len(used), strict=True)]


def _silent(_seconds: float, _crowd: Crowd) -> None:
    """A table is told, no progress."""


def main(
    connections: Annotated[int, typer.Option(min=1, max=512, help="With a stream each.")] = 64,
    token_ms: Annotated[float, typer.Option(min=0, help="0: as fast as it goes.")] = 10,
    seconds: Annotated[int, typer.Option(min=1, help="Of each round.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Of each number of workers, in turns.")] = 2,
    workers: Annotated[str, typer.Option(help="Numbers of workers.")] = "1,2",
) -> None:
    """Measure, and print a Markdown table."""
    rows = [_Row(int(number)) for number in workers.split(",")]
    load = Load(connections, max_tokens=400, duration_s=seconds)
    for _ in range(rounds):
        for row in rows:
            asyncio.run(_round(row, load, token_ms))
    print(f"Load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n")
    print("| workers | tokens/s | cores used | µs a token | shares | gap p99 ms | exact |")
    print("| ---: |" + " ---: |" * 6)
    for row in rows:
        print(row.line())


if __name__ == "__main__":
    typer.run(main)
