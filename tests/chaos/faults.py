"""Does to a running mesh what a plan says."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Sequence

from redis.asyncio import Redis

from launcher.bench.mesh import RunningMesh
from tests.chaos.plan import Fault
from tests.chaos.relay import Relay
from tests.chaos.wall_clock import WallClocks

__all__ = ["Saboteur"]


class Saboteur:
    """Strikes the mesh; `clocks` None: wall clocks are left alone."""

    def __init__(
        self, mesh: RunningMesh, relays: Sequence[Relay], clocks: WallClocks | None
    ) -> None:
        self._mesh = mesh
        self._relays = relays
        self._clocks = clocks

    async def strike(self, fault: Fault) -> None:
        """Wait for the moment, and do it; returns when what was done is over."""
        await asyncio.sleep(fault.after_s)
        match fault.kind:
            case "freeze":
                await self._freeze(fault.target, fault.amount)
            case "cut":
                for index, relay in enumerate(self._relays):
                    relay.cut(random.Random(f"{fault.run}/{index}"), int(fault.amount))
            case "flush":
                await self._flush()
            case "clock" if self._clocks is not None:
                pid = self._mesh.pid(fault.target)
                if pid is not None:
                    self._clocks.step(pid, fault.amount)
            case "clock":
                raise RuntimeError("no library that steps wall clocks")
            case _:
                self._mesh.signal(fault.target, signal.SIGKILL)

    async def _freeze(self, name: str, seconds: float) -> None:
        self._mesh.signal(name, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._mesh.signal(name, signal.SIGCONT)

    async def _flush(self) -> None:
        address = self._mesh.specs["store-0"].address
        store = Redis.from_url(f"redis://{address}/0")
        try:
            await store.flushall()
        finally:
            await store.aclose()
