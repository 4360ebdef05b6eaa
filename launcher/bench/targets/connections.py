"""What connections cost: handshakes, idle sessions and readers that stall, by the thousand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from launcher.bench.figures import (
    Figure,
    cpu_s,
    more_files,
    percentile,
    resident_bytes,
    unsent_bytes,
)
from launcher.bench.hop import GATEWAY
from launcher.bench.light_reader import LightReader
from launcher.bench.mesh import RunningMesh
from launcher.bench.reader import connect, open_all, script_messages
from launcher.bench.targets.streams import end, gateway_mesh

__all__ = ["SESSIONS", "handshakes", "memory"]

SESSIONS = 8_000

# Beside connections a process has a few dozen files of its own, and so many may come before.
FILES_BESIDE = 500
WARM = 200
KB = 1_000
IDLE_MAX_BYTES, STALLED_MAX_BYTES = 40 * KB, 200 * KB
STALLED = 400
SETTLE_S, WITHIN_S = 3.0, 120.0
HANDSHAKING, HANDSHAKES_S, HANDSHAKES_MIN = 64, 5.0, 1_200
AT_ONCE_MAX_S = 8.0


class _Gateway:
    """What is read of the process under test."""

    def __init__(self, mesh: RunningMesh) -> None:
        pid = mesh.pid(GATEWAY)
        assert pid is not None  # noqa: S101 - nobody kills it here
        self.pid, self.address = pid, mesh.specs[GATEWAY].address
        self.port = int(self.address.rpartition(":")[2])

    def bytes_held(self) -> int:
        """Its memory, and what the kernel has to send for it."""
        return resident_bytes(self.pid) + unsent_bytes(self.port)


async def _all_greeted(readers: list[LightReader]) -> None:
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*(reader.greeted for reader in readers))


async def _warm(gateway: _Gateway) -> None:
    """What is made once, by whoever comes first, is not counted for those who come later."""
    readers = await open_all(LightReader, gateway.address, WARM)
    await _one_answer(readers)
    await end(readers)


async def _one_answer(readers: list[LightReader]) -> None:
    """A short stream each, that its client cancels."""
    for reader in readers:
        reader.ask(script_messages([b"x"], dt_ms=SETTLE_S * 1_000, repeat=1), id="s1")
        reader.write({"type": "cancel", "id": "s1"})
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*(reader.ended for reader in readers))


def _per_session(name: str, most: int, held: float, more: str = "") -> Figure:
    return Figure(name, f"≤ {most // KB} kB", f"{held / KB:.1f} kB{more}", held <= most)


def _room(sessions: int) -> tuple[str, ...]:
    """The gateway's flags; whoever starts it may hold as many files as it needs."""
    more_files(sessions + FILES_BESIDE)
    return ("--connections-max", str(2 * sessions + FILES_BESIDE))


async def memory(data: Path, sessions: int = SESSIONS) -> AsyncIterator[Figure]:
    """Idle sessions, then the same with a past, then readers that stall."""
    room = _room(sessions)
    async with gateway_mesh(data, room) as mesh:
        gateway = _Gateway(mesh)
        await _warm(gateway)
        before = gateway.bytes_held()
        readers = await open_all(LightReader, gateway.address, sessions)
        await _all_greeted(readers)
        idle = (gateway.bytes_held() - before) / sessions
        yield _per_session(f"an idle session, of {sessions:,}", IDLE_MAX_BYTES, idle)
        await _one_answer(readers)
        await asyncio.sleep(SETTLE_S)
        past = (gateway.bytes_held() - before) / sessions
        yield _per_session("… when it has had an answer", IDLE_MAX_BYTES, past)
        await end(readers)
    for windowed, who in ((True, "windowed"), (False, "simple, TCP its only window")):
        async with gateway_mesh(data / who[:6], room) as mesh:
            yield await _stalled(_Gateway(mesh), who, windowed=windowed)


async def _stalled(gateway: _Gateway, who: str, *, windowed: bool) -> Figure:
    await _warm(gateway)
    before = gateway.bytes_held()
    readers = await open_all(_StallingReader, gateway.address, STALLED, windowed=windowed)
    for reader in readers:
        reader.stall()
        reader.ask(script_messages([b"x"], dt_ms=0, repeat=1))
    kernel = await _filled(gateway.port)
    held = (gateway.bytes_held() - before) / STALLED
    for reader in readers:
        reader.cut()
    return _per_session(
        f"a reader that stalls, {who}, of {STALLED}",
        STALLED_MAX_BYTES,
        held,
        f", of it {kernel / STALLED / KB:.1f} kB in the kernel's send queue",
    )


class _StallingReader(LightReader):
    """Its own kernel is not to hide what it does not read."""

    receive_buffer_bytes = 4096


async def _filled(port: int) -> int:
    """What lies in the send queues when they grow no more."""
    async with asyncio.timeout(WITHIN_S):
        queued = -1
        while (now := unsent_bytes(port)) > queued:
            queued = now
            await asyncio.sleep(SETTLE_S)
    return queued


async def handshakes(data: Path, sessions: int = SESSIONS) -> AsyncIterator[Figure]:
    """As many as it takes from a few that keep asking, then all at once."""
    async with gateway_mesh(data, _room(sessions)) as mesh:
        gateway = _Gateway(mesh)
        await _warm(gateway)
        yield await _rate(gateway, sessions)
        yield await _at_once(gateway, sessions)


async def _rate(gateway: _Gateway, most: int) -> Figure:
    loop = asyncio.get_running_loop()
    readers: list[LightReader] = []
    began, used = loop.time(), cpu_s(gateway.pid)

    async def keep_asking() -> None:
        while loop.time() < began + HANDSHAKES_S and len(readers) < most:
            reader = await connect(LightReader, gateway.address, windowed=True, name="bench")
            await reader.greeted
            readers.append(reader)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(HANDSHAKING):
            tasks.create_task(keep_asking())
    took, cpu = loop.time() - began, cpu_s(gateway.pid) - used
    count = len(readers)
    await end(readers)
    return Figure(
        f"handshakes, `session` heard, {HANDSHAKING} under way",
        f"≥ {HANDSHAKES_MIN:,}/s a core",
        f"{count / cpu:,.0f}/s a core ({cpu / count * 1e6:,.0f} µs each); {count / took:,.0f}/s came "
        f"for {cpu / took:.2f} of a core",
        count / cpu >= HANDSHAKES_MIN,
    )


async def _at_once(gateway: _Gateway, sessions: int) -> Figure:
    loop = asyncio.get_running_loop()
    began = loop.time()
    took: list[float] = []
    failures: list[str] = []
    readers: list[LightReader] = []

    async def come() -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                reader = await connect(LightReader, gateway.address, windowed=True, name="bench")
                readers.append(reader)
                await reader.greeted
        except OSError as error:
            failures.append(f"{type(error).__name__}: {error}")
        else:
            took.append(loop.time() - began)

    await asyncio.gather(*(come() for _ in range(sessions)))
    await end(readers)
    p50, p99 = (percentile(took, share) for share in (0.5, 0.99))
    said = f"; the first: {failures[0]}" if failures else ""
    return Figure(
        f"{sessions:,} handshakes at once, from one address",
        f"p99 ≤ {AT_ONCE_MAX_S:g} s, no failure",
        f"p50 {p50:.1f} s, p99 {p99:.1f} s, {len(failures)} failed{said}",
        p99 <= AT_ONCE_MAX_S and not failures,
    )
