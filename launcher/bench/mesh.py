"""A whole mesh kept by this process, for what measures it and for what breaks it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from launcher.blueprint import ProcessSpec, UpOptions, build
from launcher.data_folder import make_data_folder
from launcher.environment import mesh_environment
from launcher.meshfile import read_mesh
from launcher.models import resolve_model
from launcher.probes import serves
from launcher.supervisor import Supervisor

__all__ = ["RunningMesh", "running_mesh", "with_model"]

SERVING_WITHIN_S = 60.0
POLL_S = 0.05


class RunningMesh:
    """The processes by name; whoever dies is started again where it was."""

    def __init__(self, data: Path, specs: list[ProcessSpec]) -> None:
        self.data = data
        self.specs = {spec.name: spec for spec in specs}

    def names(self, kind: str) -> list[str]:
        """The processes of a kind."""
        return [spec.name for spec in self.specs.values() if spec.kind == kind]

    def pid(self, name: str) -> int | None:
        """The process's id; None while it is dead."""
        return next((p.pid for p in read_mesh(self.data) if p.name == name), None)

    def signal(self, name: str, signum: signal.Signals) -> int:
        """Send a signal; the id of the process that got it. Raises `ProcessLookupError`."""
        pid = self.pid(name)
        if pid is None:
            raise ProcessLookupError(name)
        os.kill(pid, signum)
        return pid

    async def serving(self, *names: str) -> None:
        """Return when these processes serve, all of them if none is named.

        Raises `TimeoutError`.
        """
        async with asyncio.timeout(SERVING_WITHIN_S):
            await asyncio.gather(*(self._until_serving(name) for name in names or self.specs))

    async def _until_serving(self, name: str) -> None:
        while self.pid(name) is None or not await serves(self.specs[name]):  # noqa: ASYNC110 - another process
            await asyncio.sleep(POLL_S)


def with_model(options: UpOptions) -> UpOptions:
    """The options with the default model filled in, where the engine wants one."""
    if options.engine != "native":
        return options
    found = resolve_model(None)
    return replace(options, model=found.path, model_name=found.name, aliases=tuple(found.aliases))


@contextlib.asynccontextmanager
async def running_mesh(
    options: UpOptions,
    environment: Mapping[str, str] | None = None,
    adjust: Callable[[ProcessSpec], ProcessSpec] = lambda spec: spec,
) -> AsyncIterator[RunningMesh]:
    """Start everything, and end it when the block is left. The data folder is made.

    `environment` is added to this process's; `adjust` has the last word on each process.
    Raises `StartFailedError`.
    """
    make_data_folder(options.data)
    specs = [adjust(spec) for spec in build(options)]
    supervisor = Supervisor(
        specs, options.data, environment=mesh_environment({**os.environ, **(environment or {})})
    )
    try:
        await supervisor.start()
        yield RunningMesh(options.data, specs)
    finally:
        await supervisor.stop()
