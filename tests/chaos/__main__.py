"""`python -m tests.chaos`: break the mesh again and again, and look at every byte and every bill."""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.chaos.plan import KINDS
from tests.chaos.runs import ChaosOptions, Report, chaos
from tests.chaos.traffic import ENGINES

__all__ = ["main"]

# Where nobody sees a progress bar, a line after so many runs.
SAID_EVERY = 25


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _say(report: Report, seconds: float) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.by_kind.items()))
    typer.echo(f"{report.runs} runs in {seconds:.0f} s: {kinds}")
    typer.echo(f"{report.streams} streams, {report.characters:,} characters")
    typer.echo(
        f"{len(report.failures)} lost, doubled, reordered or wrongly billed"
        if report.failures
        else "every text whole, in order and once; every stream billed once, as it was told"
    )


def main(
    runs: Annotated[int, typer.Option(min=1, help="Faults, one after the other.")] = 100,
    seed: Annotated[int | None, typer.Option(help="Decides everything. Default: any.")] = None,
    kinds: Annotated[str, typer.Option(help="Kinds of fault, in turn.")] = ",".join(KINDS),
    engine: Annotated[str, typer.Option(help="script, or native: the real model.")] = "script",
    clients: Annotated[int, typer.Option(min=1, help="Sessions at once.")] = 6,
    data: Annotated[
        Path | None, typer.Option(help="Folder for the mesh's data and logs. Default: a new one.")
    ] = None,
) -> None:
    """Break the mesh under load, one fault at a time, and compare every text and every bill."""
    chosen = tuple(kind.strip() for kind in kinds.split(","))
    if unknown := set(chosen) - set(KINDS):
        raise typer.BadParameter(f"unknown kinds {', '.join(sorted(unknown))}", param_hint="kinds")
    if engine not in ENGINES:
        raise typer.BadParameter("script or native", param_hint="engine")
    seed = secrets.randbelow(2**31) if seed is None else seed
    folder = (data or Path(tempfile.mkdtemp(prefix="seedance-chaos-"))).resolve()
    console = Console(stderr=True)
    console.print(f"seed {seed}; logs in {folder / 'logs'}", highlight=False)
    options = ChaosOptions(folder, runs, seed, chosen, engine, clients)
    began = time.perf_counter()
    told = 0
    with _progress(console) as progress:
        task = progress.add_task("breaking the mesh", total=runs)

        def tell(report: Report) -> None:
            nonlocal told
            progress.update(task, completed=report.runs)
            if not console.is_terminal and report.runs % SAID_EVERY == 0:
                console.print(f"{report.runs} of {runs}", highlight=False)
            for failure in report.failures[told:]:
                typer.echo(failure)
            told = len(report.failures)

        report = asyncio.run(chaos(options, tell))
    _say(report, time.perf_counter() - began)
    if report.failures:
        typer.echo(f"replay: python -m tests.chaos --seed {seed} --runs {runs} --kinds {kinds}")
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
