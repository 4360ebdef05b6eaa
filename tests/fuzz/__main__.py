"""`python -m tests.fuzz`: send a mesh what no client should, and see that nobody else notices."""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from tests.fuzz.runs import FuzzOptions, Report, fuzz

__all__ = ["main"]


def _say(report: Report, seconds: float) -> None:
    verdict = report.verdict
    for title, counts in (("sent", verdict.sent), ("answered", verdict.answers)):
        typer.echo(f"{title}: " + ", ".join(f"{n:,} {what}" for what, n in sorted(counts.items())))
    for name, after in report.resident.items():
        typer.echo(f"{name}: " + " → ".join(f"{size / 2**20:.1f}" for size in after) + " MiB")
    typer.echo(f"{report.sent:,} sent in {seconds:.0f} s beside {report.streams} streams of others")
    for fault in verdict.faults:
        typer.echo(f"\nfault: {fault}")
    typer.echo(f"{verdict.faulty} faults" if verdict.faulty else "no fault")


def main(
    examples: Annotated[
        int, typer.Option(min=100, help="Requests, messages and connections together, about.")
    ] = 100_000,
    seed: Annotated[int | None, typer.Option(help="Decides what is sent. Default: any.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder for the mesh's data and logs. Default: a new one.")
    ] = None,
) -> None:
    """Fuzz HTTP by the OpenAPI document, WebSocket by the contract's frames, and both by bytes."""
    number = secrets.randbelow(2**31) if seed is None else seed
    folder = (data or Path(tempfile.mkdtemp(prefix="seedance-fuzz-"))).resolve()
    typer.echo(f"seed {number}; logs in {folder / 'logs'}", err=True)
    began = time.perf_counter()
    report = fuzz(
        FuzzOptions(folder, examples, number),
        lambda so_far: typer.echo(f"{so_far.sent:,} of {examples:,}", err=True),
    )
    _say(report, time.perf_counter() - began)
    sys.exit(1 if report.verdict.faulty else 0)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
