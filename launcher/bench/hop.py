"""`make profile`: the script engine at full speed through a real gateway, and what a token costs there.

Processes are real, and so are sockets, store, commits, bills and telemetry. The gateway has a core
to itself; engine, store and clients share the others, so that the rate is theirs as often as the
gateway's: what a token costs the gateway in CPU time is the figure, and its inverse is what a core
carries.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from launcher.bench.figures import cpu_s, more_files
from launcher.bench.mesh import RunningMesh, running_mesh
from launcher.bench.reader import Reader, open_readers, script_messages
from launcher.blueprint import UpOptions
from launcher.ports import free_port

__all__ = ["main"]

TEXT = b" quantum"
WARM_S = 1.5
US_PER_S = 1_000_000
# Far more than is played while it is measured.
REPEAT = 100_000
ENGINE_FLAGS = ("--batch-max", "512", "--step-tokens-max", "8192")
GATEWAY = "gateway-0"


@dataclass(frozen=True, slots=True)
class _Load:
    """So many streams, each paced by the engine at a token every `dt_ms` (0: as fast as it goes)."""

    streams: int
    dt_ms: float


@dataclass(frozen=True, slots=True)
class _Row:
    load: _Load
    tokens: int
    frames: int
    cpu_s: float
    wall_s: float

    def line(self) -> str:
        pace = f"{1000 / self.load.dt_ms:.0f}/s each" if self.load.dt_ms else "full speed"
        us = self.cpu_s / self.tokens * US_PER_S
        return (
            f"| {self.load.streams} streams, {pace} | {self.tokens / self.wall_s:,.0f} "
            f"| {self.frames / self.wall_s:,.0f} | {self.cpu_s / self.wall_s:.2f} "
            f"| {us:.1f} | {US_PER_S / us:,.0f} |"
        )


def _pin(mesh: RunningMesh) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:  # noqa: PLR2004 - then there is nothing to share out
        return
    gateway = mesh.pid(GATEWAY)
    for name in mesh.specs:
        pid = mesh.pid(name)
        if pid is not None:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores[:1] if pid == gateway else cores[1:])
    os.sched_setaffinity(0, cores[1:])


def _tokens(reader: Reader) -> int:
    """What has come, by where the last frame's text begins."""
    return reader.offset // len(TEXT)


async def _measure(mesh: RunningMesh, load: _Load, seconds: float, profile: Path | None) -> _Row:
    pid = mesh.pid(GATEWAY)
    assert pid is not None  # noqa: S101 - nobody kills it here
    readers = await open_readers(mesh.specs[GATEWAY].address, load.streams)
    for reader in readers:
        reader.ask(script_messages([TEXT], dt_ms=load.dt_ms, repeat=REPEAT))
    await asyncio.sleep(WARM_S)
    profiler = _profiler(pid, seconds, profile) if profile else None
    loop = asyncio.get_running_loop()
    began, used = loop.time(), cpu_s(pid)
    tokens, frames = sum(map(_tokens, readers)), sum(reader.tokens for reader in readers)
    await asyncio.sleep(seconds)
    row = _Row(
        load,
        sum(map(_tokens, readers)) - tokens,
        sum(reader.tokens for reader in readers) - frames,
        cpu_s(pid) - used,
        loop.time() - began,
    )
    if profiler is not None:
        await asyncio.to_thread(profiler.wait)
    for reader in readers:
        reader.write({"type": "close"})
    await asyncio.sleep(WARM_S)
    for reader in readers:
        reader.cut()
    return row


def _profiler(pid: int, seconds: float, to: Path) -> subprocess.Popen[bytes]:
    argv = [
        *("py-spy", "record", "--pid", str(pid), "--duration", str(max(1, int(seconds)))),
        *("--rate", "500", "--format", "raw", "--output", str(to)),
    ]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def _run(data: Path, loads: list[_Load], seconds: float, profile: Path | None) -> None:
    options = UpOptions(
        data=data,
        port=free_port(),
        gateways=1,
        instances=1,
        engine="script",
        inference_flags=ENGINE_FLAGS,
    )
    async with running_mesh(options) as mesh:
        _pin(mesh)
        for load in loads:
            row = await _measure(mesh, load, seconds, profile)
            print(row.line(), flush=True)


def main(
    loads: Annotated[str, typer.Option(help="STREAMS:DT_MS each.")] = "64:0,512:0,64:10",
    seconds: Annotated[float, typer.Option(min=1, help="For each load.")] = 5.0,
    profile: Annotated[Path | None, typer.Option(help="Write py-spy's samples there.")] = None,
) -> None:
    """Measure each load, and print a Markdown table."""
    more_files()
    wanted = [
        _Load(int(streams), float(dt_ms))
        for streams, _, dt_ms in (load.partition(":") for load in loads.split(","))
    ]
    print("| load | tokens/s | frames/s | cores | µs a token | tokens/s a core |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory(prefix="seedance-hop-") as folder:
        asyncio.run(_run(Path(folder), wanted, seconds, profile))


if __name__ == "__main__":
    typer.run(main)
