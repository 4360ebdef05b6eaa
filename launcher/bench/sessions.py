"""`make bench-sessions`: what a session's promises cost, and how soon they are kept.

Clients, mesh and store share this machine's cores: the times are those of a busy machine, and
ratios within one run say more than a figure alone.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from launcher.bench.cancels import cancels
from launcher.bench.checkpoints import checkpoint_cost
from launcher.bench.deaths import gateway_deaths, instance_deaths
from launcher.bench.figures import Figure, more_files
from launcher.bench.slow_readers import ack_storm, slow_readers

__all__ = ["main"]

Part = Callable[[Path, Callable[[], None]], Coroutine[Any, Any, list[Figure]]]


def _parts(kills: int, count: int, readers: int, tokens: int) -> dict[str, Part]:
    return {
        "instances": lambda data, step: instance_deaths(data, kills, step),
        "gateways": lambda data, step: gateway_deaths(data, kills, step),
        "cancels": lambda data, step: cancels(data, count, step),
        "readers": lambda data, step: slow_readers(data, readers, step),
        "checkpoints": lambda data, step: checkpoint_cost(data, tokens, step),
        "acks": ack_storm,
    }


def main(
    parts: Annotated[
        str, typer.Option(help="Which ones.")
    ] = "instances,gateways,cancels,readers,checkpoints,acks",
    kills: Annotated[int, typer.Option(min=1, help="Of instances, and of gateways.")] = 100,
    count: Annotated[int, typer.Option(min=1, help="Clients that go away.")] = 1_000,
    readers: Annotated[int, typer.Option(min=2, help="Readers, half of which stall.")] = 2_000,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens for checkpointing's cost.")] = 200_000,
) -> None:
    """Measure, and print a Markdown table, a row as soon as it is there."""
    more_files()
    known = _parts(kills, count, readers, tokens)
    if unknown := set(parts.split(",")) - known.keys():
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}", param_hint="parts")
    totals = {"instances": kills, "gateways": kills, "cancels": count}
    bars = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    print(f"Load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n")
    print("| what | target | measured | |\n| --- | --- | --- | --- |", flush=True)
    with Progress(*bars, console=Console(stderr=True), transient=True) as progress:
        for name in parts.split(","):
            task = progress.add_task(name, total=totals.get(name))
            with tempfile.TemporaryDirectory(prefix=f"seedance-{name}-") as folder:
                measured = known[name](Path(folder), partial(progress.advance, task))
                for figure in asyncio.run(measured):
                    print(figure.row(), flush=True)
            progress.remove_task(task)


if __name__ == "__main__":
    typer.run(main)
