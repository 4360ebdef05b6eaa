"""`make bench-engine`: rounds against every server, the kernels by themselves, one Markdown page."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import seedance
from launcher.bench.peers.clients import Load, measure_round, sse_client, websocket_client
from launcher.bench.peers.figures import Round, table
from launcher.bench.peers.servers import CONTESTANTS, ServerFailedError, serving
from launcher.models import resolve_model

__all__ = ["main"]

TOKENS = 64
STREAMS = "1,4,16,64"
# Requests of each client, one after the other: many enough for percentiles, few enough to end.
REQUESTS = {1: 8, 4: 4, 16: 2}
KERNEL_S = 300
_BEGIN, _END = "<!-- bench-engine -->", "<!-- end -->"
_HERE = Path(__file__).parent
_VERSION_OF = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
_PACKAGES = {"llama": "llama-cpp-python", "transformers": "transformers"}
_KERNEL_HEAD = (
    "| work | native | llama.cpp, the same file | native is | llama.cpp, Q4_0 | native is |",
    "| --- | ---: | ---: | ---: | ---: | ---: |",
)


def _kernel(python: str, *command: str) -> dict[str, float]:
    """A kernel's figures, by the process that measures it: ms of a step by batch, and prefill."""
    done = subprocess.run([python, *command], capture_output=True, timeout=KERNEL_S, check=False)
    if done.returncode:
        raise ServerFailedError(f"{command[-3:]}: {done.stderr.decode(errors='replace')[-600:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    steps = {f"step of {batch}, ms": ms for batch, ms in found["step_ms"].items()}
    return steps | {"prefill, tokens/s": found["prefill_per_s"]}


def _kernels(model: Path, python: str, threads: int) -> list[str]:
    file, count, script = str(model), str(threads), str(_HERE / "llama_kernel.py")
    native = _kernel(sys.executable, "-m", "launcher.bench.peers.native_kernel", file, count)
    same = _kernel(python, script, file, count)
    fast = _kernel(python, script, file, count, "q4_0")
    lines = list(_KERNEL_HEAD)
    for work, own in native.items():
        others = [same[work], fast[work]]
        # A time is better when it is small, a rate when it is large.
        ratios = [other / own if "ms" in work else own / other for other in others]
        cells = [f"{own:.1f}"]
        for other, ratio in zip(others, ratios, strict=True):
            cells += [f"{other:.1f}", f"{ratio:.2f}×"]
        lines.append(f"| {work} | " + " | ".join(cells) + " |")
    return lines


async def _rounds(
    key: str, model: Path, loads: list[Load], progress: Progress, *, python: str, threads: int
) -> list[Round]:
    contestant = CONTESTANTS[key]
    task = progress.add_task(f"{contestant.name} starts", total=len(loads))
    found = []
    async with serving(contestant, model, python=python, threads=threads) as (port, name):
        clients = {contestant.name: sse_client(port, name, TOKENS)}
        if key == "seedance":
            websocket = websocket_client(port, TOKENS)
            clients = {"seedance, WebSocket": websocket, "seedance, SSE": clients["seedance"]}
        for load in loads:
            for server, client in clients.items():
                progress.update(task, description=f"{server}, {load.streams} streams")
                found.append(await measure_round(server, client, load))
            progress.advance(task)
    return found


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _machine(keys: list[str], pythons: dict[str, str], model: Path, threads: int) -> list[str]:
    versions = [f"seedance {seedance.__version__}", f"torch {metadata.version('torch')}"]
    for key in keys:
        if key in _PACKAGES:
            command = [pythons[key], "-c", _VERSION_OF, _PACKAGES[key]]
            done = subprocess.run(command, capture_output=True, check=False)
            versions.append(f"{_PACKAGES[key]} {done.stdout.decode().strip()}")
    machine = (
        f"{_cpu()}, {os.cpu_count()} cores, {threads} threads for each server; "
        f"{platform.platform()}; Python {platform.python_version()}."
    )
    work = (
        f"{', '.join(versions)}. Model: {model.name} (transformers: its values in bf16). "
        f"About 96 prompt tokens, {TOKENS} of answer, greedy; the clients run on the same cores."
    )
    return [machine, work, ""]


def _report(page: list[str], output: Path | None) -> None:
    text = "\n".join(page) + "\n"
    print(text)
    if output is not None:
        before, _, rest = output.read_text().partition(_BEGIN)
        _, end, after = rest.partition(_END)
        output.write_text(f"{before}{_BEGIN}\n{text}{end}{after}")


def main(
    model: Annotated[
        Path | None, typer.Option(help="GGUF file; default: the default model.")
    ] = None,
    llama_server_python: Annotated[
        str, typer.Option(help="A Python with llama-cpp-python[server]; empty: left out.")
    ] = "",
    transformers_python: Annotated[
        str,
        typer.Option(help="A Python with transformers[serving] and accelerate; empty: left out."),
    ] = "",
    only: Annotated[
        str, typer.Option(help="Of seedance, llama, transformers, kernels; by commas. Empty: all.")
    ] = "",
    streams: Annotated[str, typer.Option(help="Numbers of clients, by commas.")] = STREAMS,
    limit_s: Annotated[float, typer.Option(help="Longest a round may take.")] = 180.0,
    threads: Annotated[int, typer.Option(help="Compute threads of each server.")] = 2,
    output: Annotated[
        Path | None, typer.Option(help="Page whose part between the markers is written anew.")
    ] = None,
) -> None:
    """Measure and print a Markdown page; the progress goes to stderr."""
    # Servers are ended however this ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pythons = {"llama": llama_server_python, "transformers": transformers_python}
    wanted = [word.strip() for word in only.split(",") if word.strip()]
    keys = [k for k in CONTESTANTS if (not wanted or k in wanted) and pythons.get(k, "ours")]
    loads = [Load(n, REQUESTS.get(n, 1), limit_s) for n in map(int, streams.split(","))]
    path = model or resolve_model(None).path
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    page = _machine(keys, pythons, path, threads)
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            rounds: list[Round] = []
            for key in keys:
                python = pythons.get(key, sys.executable)
                measured = _rounds(key, path, loads, progress, python=python, threads=threads)
                rounds += asyncio.run(measured)
            page += table(rounds) if rounds else []
            if llama_server_python and (not wanted or "kernels" in wanted):
                progress.add_task("kernels", total=None)
                page += ["", *_kernels(path, llama_server_python, threads)]
    except ServerFailedError as error:
        console.print(str(error), markup=False)
        raise typer.Exit(1) from None
    _report(page, output)


if __name__ == "__main__":
    typer.run(main)
