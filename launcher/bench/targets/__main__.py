"""`make bench-hop`: the hop beside its targets.

Processes are real but where a figure is a difference of microseconds: there a gateway runs in this
process, versions in turn, and its CPU time counts.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from launcher.bench.figures import Figure, more_files
from launcher.bench.targets.connections import SESSIONS, handshakes, memory
from launcher.bench.targets.latency import coalesced, latency
from launcher.bench.targets.telemetry import everything, tracing

__all__ = ["main"]

Part = Callable[[Path], AsyncIterator[Figure]]
PARTS: tuple[str, ...] = (
    "latency",
    "coalesced",
    "handshakes",
    "memory",
    "tracing",
    "everything",
)


def _parts(sessions: int) -> dict[str, Part]:
    of_connections = {"handshakes": handshakes, "memory": memory}
    return {
        "latency": latency,
        "coalesced": coalesced,
        "tracing": tracing,
        "everything": everything,
        **{name: partial(part, sessions=sessions) for name, part in of_connections.items()},
    }


async def _measure(part: Part) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory(prefix="seedance-hop-") as folder:
        async for figure in part(Path(folder)):
            print(figure.row(), flush=True)
            figures.append(figure)
    return figures


def main(
    parts: Annotated[str, typer.Option(help="Which ones, with commas.")] = ",".join(PARTS),
    sessions: Annotated[
        int, typer.Option(min=1, help="Connections at once, of handshakes and memory.")
    ] = SESSIONS,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """Measure, and print a Markdown table, a row as soon as it is there."""
    wanted = parts.split(",")
    if unknown := set(wanted) - set(PARTS):
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}", param_hint="parts")
    more_files()
    print(f"Load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n")
    print("| what | target | measured | |\n| --- | --- | --- | --- |", flush=True)
    parts_by_name = _parts(sessions)
    figures = [figure for part in wanted for figure in uvloop.run(_measure(parts_by_name[part]))]
    print(f"\nLoad after: {os.getloadavg()[0]:.1f}.")
    if json_file is not None:
        text = json.dumps([asdict(figure) for figure in figures], indent=2, ensure_ascii=False)
        json_file.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
