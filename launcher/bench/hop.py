"""`make profile`: an engine at full speed through a real gateway, and what a token costs there.

Processes are real, and so are sockets, store, commits, bills and telemetry; the engine is one that
costs next to nothing (`launcher.bench.fake_instance`). The gateway has a core to itself; all others
share the rest, so that the rate is theirs as often as the gateway's: what a token costs the gateway
in CPU time is the figure, and its inverse is what a core carries.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from launcher.bench.fake_instance import TEXT_BYTES
from launcher.bench.figures import cpu_s, more_files, percentile
from launcher.bench.light_reader import LightReader
from launcher.bench.mesh import RunningMesh, running_mesh
from launcher.bench.pass_through import PassThrough, is_installed, pass_through
from launcher.bench.reader import open_all, script_messages
from launcher.blueprint import ProcessSpec, UpOptions
from launcher.ports import free_port

__all__ = ["GATEWAY", "HopLoad", "HopRow", "hop_mesh", "main", "measure_hop"]

WARM_S = 1.5
US_PER_S = 1_000_000
MS_PER_S = 1_000
GATEWAY = "gateway-0"


@dataclass(frozen=True, slots=True)
class HopLoad:
    """So many streams, each paced by the engine at a token every `dt_ms` (0: as fast as it goes)."""

    streams: int
    dt_ms: float

    def __str__(self) -> str:
        pace = f"{MS_PER_S / self.dt_ms:.0f}/s each" if self.dt_ms else "full speed"
        return f"{self.streams} streams, {pace}"


@dataclass(frozen=True, slots=True)
class HopRow:
    """What was seen in `wall_s`; CPU is the gateway's and, where frames went through nginx, nginx's.

    Frames are all that have a number: a `flush` now and then is among them.
    """

    load: HopLoad
    tokens: int
    frames: int
    cpu_s: float
    wall_s: float
    late_s: list[float]
    proxy_cpu_s: float = 0.0

    @property
    def us_per_token(self) -> float:
        """The gateway's CPU time."""
        return self.cpu_s / self.tokens * US_PER_S

    @property
    def us_per_frame(self) -> float:
        """The gateway's CPU time."""
        return self.cpu_s / self.frames * US_PER_S

    @property
    def proxy_us_per_frame(self) -> float:
        """The CPU time of nginx."""
        return self.proxy_cpu_s / self.frames * US_PER_S

    def line(self, name: str = "") -> str:
        """As a row of a Markdown table."""
        p50, p99 = (percentile(self.late_s, share) * MS_PER_S for share in (0.5, 0.99))
        return (
            f"| {name or self.load} | {self.tokens / self.wall_s:,.0f} "
            f"| {self.tokens / self.frames:.2f} | {self.cpu_s / self.wall_s:.2f} "
            f"| {self.us_per_token:.1f} | {US_PER_S / self.us_per_token:,.0f} "
            f"| {p50:.1f} / {p99:.1f} |"
        )


HEAD = (
    "| load | tokens/s | tokens a frame | cores | µs a token | tokens/s a core | p50 / p99 ms |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
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


@asynccontextmanager
async def hop_mesh(data: Path, gateway_flags: tuple[str, ...] = ()) -> AsyncIterator[RunningMesh]:
    """A mesh of one gateway and the cheap instance, which no router tells it of."""
    options = UpOptions(data=data, port=free_port(), gateways=1, instances=1, engine="script")
    engine = ""

    def adjust(spec: ProcessSpec) -> ProcessSpec:
        nonlocal engine
        if spec.kind == "inference":
            engine = spec.address
            port = engine.rpartition(":")[2]
            fake = (sys.executable, "-m", "launcher.bench.fake_instance", "--port", port)
            return replace(spec, argv=fake)
        if spec.kind == "gateway":
            more = ("--router", "", "--instances", engine, "--connections-per-address", "0")
            return replace(spec, argv=(*spec.argv, *more, *gateway_flags))
        return spec

    async with running_mesh(options, adjust=adjust) as mesh:
        _pin(mesh)
        yield mesh


def _tokens(readers: list[LightReader]) -> int:
    """What has come, by where the last frames' text begins."""
    return sum(reader.offset // TEXT_BYTES for reader in readers)


async def measure_hop(
    mesh: RunningMesh,
    load: HopLoad,
    seconds: float,
    proxy: PassThrough | None = None,
    profile: Path | None = None,
) -> HopRow:
    """Open the load's streams, let them run and end them; `profile`: py-spy's samples go there."""
    pid = mesh.pid(GATEWAY)
    assert pid is not None  # noqa: S101 - nobody kills it here
    address = mesh.specs[GATEWAY].address if proxy is None else proxy.address
    readers = await open_all(LightReader, address, load.streams)
    for reader in readers:
        reader.ask(script_messages([b"x"], dt_ms=load.dt_ms, repeat=1))
    await asyncio.sleep(WARM_S)
    profiler = _profiler(pid, seconds, profile) if profile else None
    loop, late_s = asyncio.get_running_loop(), list[float]()
    for reader in readers:
        reader.late_s = late_s
    began, used, proxy_used = loop.time(), cpu_s(pid), proxy.cpu_s() if proxy else 0.0
    tokens, frames = _tokens(readers), sum(reader.seq for reader in readers)
    await asyncio.sleep(seconds)
    row = HopRow(
        load,
        _tokens(readers) - tokens,
        sum(reader.seq for reader in readers) - frames,
        cpu_s(pid) - used,
        loop.time() - began,
        late_s,
        proxy.cpu_s() - proxy_used if proxy else 0.0,
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


async def _run(
    data: Path, loads: list[HopLoad], seconds: float, flags: tuple[str, ...], profile: Path | None
) -> None:
    async with hop_mesh(data, flags) as mesh:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[1:] or cores)  # the clients, and nginx
        for load in loads:
            row = await measure_hop(mesh, load, seconds, profile=profile)
            print(row.line(), flush=True)
        if is_installed():
            await _beside_nginx(mesh, loads, seconds)


async def _beside_nginx(mesh: RunningMesh, loads: list[HopLoad], seconds: float) -> None:
    async with pass_through(mesh.specs[GATEWAY].address, mesh.data) as nginx:
        for load in loads:
            if not load.dt_ms:
                continue
            row = await measure_hop(mesh, load, seconds, nginx)
            ratio = row.us_per_frame / row.proxy_us_per_frame
            said = f"{load}, through nginx ({row.proxy_us_per_frame:.1f} µs a frame, ours × {ratio:.2f})"
            print(row.line(said), flush=True)


def main(
    loads: Annotated[str, typer.Option(help="STREAMS:DT_MS each.")] = "64:0,512:0,64:10",
    seconds: Annotated[float, typer.Option(min=1, help="For each load.")] = 5.0,
    gateway_flags: Annotated[str, typer.Option(help="More of the gateway's flags.")] = "",
    profile: Annotated[Path | None, typer.Option(help="Write py-spy's samples there.")] = None,
) -> None:
    """Measure each load, and print a Markdown table; paced ones again, with nginx in between."""
    more_files()
    wanted = [
        HopLoad(int(streams), float(dt_ms))
        for streams, _, dt_ms in (load.partition(":") for load in loads.split(","))
    ]
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory(prefix="seedance-hop-") as folder:
        flags = tuple(gateway_flags.split())
        asyncio.run(_run(Path(folder), wanted, seconds, flags, profile))


if __name__ == "__main__":
    typer.run(main)
