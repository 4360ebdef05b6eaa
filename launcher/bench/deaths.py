"""How long a stream stands still when what carries it is killed."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable
from pathlib import Path

from launcher.bench.figures import Figure, percentile
from launcher.bench.mesh import RunningMesh, running_mesh
from launcher.bench.reader import script_messages
from launcher.blueprint import UpOptions
from launcher.ports import free_port
from seedance.client import AsyncSeedanceClient, AsyncStream

__all__ = ["gateway_deaths", "instance_deaths"]

DT_MS = 10.0
# Long enough to outlast the kill; given up after it.
REPEAT = 2_000
CLIENTS = 8
# Text flows this long before the kill, and after it.
BEFORE_S, WITHIN_S = 0.4, 20.0
INSTANCE_STALL_MAX_S = 0.5
AFTER_RECONNECT_MAX_S = 0.2

Progress = Callable[[], None]


class _Watcher:
    """One client with one stream, and when its chunks and its reconnects came."""

    def __init__(self, url: str) -> None:
        self.chunks: list[float] = []
        self.resumed: list[float] = []
        self._loop = asyncio.get_running_loop()
        self.client = AsyncSeedanceClient(url, on_state=self._on_state)
        messages = script_messages([b"word "], dt_ms=DT_MS, repeat=REPEAT)
        self.stream: AsyncStream = self.client.chat(messages)
        self._task = asyncio.create_task(self._read())

    def _on_state(self, state: str) -> None:
        if state == "resuming":
            self.resumed.append(self._loop.time())

    async def _read(self) -> None:
        while chunks := await self.stream.next_chunks():
            self.chunks += [self._loop.time()] * len(chunks)

    async def text_after(self, at: float) -> float:
        """When the first chunk later than `at` came. Raises `TimeoutError`."""
        async with asyncio.timeout(WITHIN_S):
            while not self.chunks or self.chunks[-1] <= at:
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(DT_MS / 2_000)
        return next(when for when in self.chunks if when > at)

    def stall(self, killed_at: float) -> float:
        """The longest pause between two chunks from shortly before the kill on."""
        near = [at for at in self.chunks if at > killed_at - 0.1]
        return max(after - before for before, after in itertools.pairwise(near))

    async def close(self) -> None:
        """End the stream and its session."""
        self.stream.cancel()
        await asyncio.wait([self._task], timeout=WITHIN_S)
        await self.client.close()


def _options(data: Path, *, gateways: int, instances: int) -> UpOptions:
    return UpOptions(
        data=data, port=free_port(), gateways=gateways, instances=instances, engine="script"
    )


async def _watchers(mesh: RunningMesh) -> list[_Watcher]:
    await mesh.serving()
    url = f"ws://{mesh.specs['gateway-0'].address}"
    watchers = [_Watcher(url) for _ in range(CLIENTS)]
    begun = asyncio.get_running_loop().time()
    for watcher in watchers:
        await watcher.text_after(begun)
    await asyncio.sleep(BEFORE_S)
    return watchers


async def instance_deaths(data: Path, kills: int, step: Progress) -> list[Figure]:
    """Kill the instance that the streams are on, and look for the longest pause in each."""
    stalls: list[float] = []
    async with running_mesh(_options(data, gateways=1, instances=3)) as mesh:
        for _ in range(kills):
            watchers = await _watchers(mesh)
            struck = watchers[0].stream.accepted
            assert struck is not None  # noqa: S101 - it has text
            hit = [
                w
                for w in watchers
                if w.stream.accepted and w.stream.accepted.instance == struck.instance
            ]
            killed_at = asyncio.get_running_loop().time()
            mesh.signal(struck.instance, signal.SIGKILL)
            for watcher in hit:
                await watcher.text_after(killed_at + DT_MS / 500)
            await asyncio.sleep(BEFORE_S)
            stalls += [watcher.stall(killed_at) for watcher in hit]
            await asyncio.gather(*(watcher.close() for watcher in watchers))
            step()
    p50, p99 = percentile(stalls, 0.5), percentile(stalls, 0.99)
    said = (
        f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms ({kills} kills, {len(stalls)} streams)"
    )
    name = "pause of a stream whose instance is killed"
    return [Figure(name, "p99 ≤ 500 ms", said, p99 <= INSTANCE_STALL_MAX_S)]


async def gateway_deaths(data: Path, kills: int, step: Progress) -> list[Figure]:
    """Kill the gateway that the clients are on; count from the new connection, and from the kill."""
    after_reconnect: list[float] = []
    stalls: list[float] = []
    async with running_mesh(_options(data, gateways=3, instances=2)) as mesh:
        for _ in range(kills):
            watchers = await _watchers(mesh)
            killed_at = asyncio.get_running_loop().time()
            mesh.signal("gateway-0", signal.SIGKILL)
            for watcher in watchers:
                async with asyncio.timeout(WITHIN_S):
                    while not watcher.resumed:  # noqa: ASYNC110 - as the SDK says it
                        await asyncio.sleep(DT_MS / 2_000)
                resumed_at = watcher.resumed[0]
                after_reconnect.append(await watcher.text_after(resumed_at) - resumed_at)
            stalls += [watcher.stall(killed_at) for watcher in watchers]
            await asyncio.gather(*(watcher.close() for watcher in watchers))
            step()
    p50, p99 = percentile(after_reconnect, 0.5), percentile(after_reconnect, 0.99)
    all50, all99 = percentile(stalls, 0.5), percentile(stalls, 0.99)
    measured = f"({kills} kills, {len(stalls)} streams)"
    said = f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms {measured}"
    whole = f"p50 {all50 * 1000:.0f} ms, p99 {all99 * 1000:.0f} ms"
    return [
        Figure(
            "text after the reconnect, when the gateway is killed",
            "p99 ≤ 200 ms",
            said,
            p99 <= AFTER_RECONNECT_MAX_S,
        ),
        Figure(
            "the same from the kill on, with the SDK's jittered first wait", "0–500 ms more", whole
        ),
    ]
