"""A service of the mesh as a process of its own, started as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

__all__ = ["START_S", "ServiceProcess", "running_service"]

START_S = 45.0


class ServiceProcess:
    """A process that has said where it listens."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.address = address
        self._process = process

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def kill(self) -> None:
        """`kill -9`."""
        await self.stop(signal.SIGKILL)

    def send(self, signum: signal.Signals) -> None:
        """Send a signal and go on."""
        self._process.send_signal(signum)

    async def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit status."""
        if self._process.returncode is None:
            self._process.send_signal(signum)
        return await self._process.wait()


@contextlib.asynccontextmanager
async def running_service(
    module: str, *flags: str, env: dict[str, str] | None = None, log: Path | None = None
) -> AsyncIterator[ServiceProcess]:
    """`python -m MODULE --port 0 --announce FLAGS`, killed when the block is left.

    `log` is the file for what it logs; None: where the tests' own goes.
    """
    stderr = None if log is None else log.open("wb")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "--port", "0", "--announce", "--die-with-parent", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, **(env or {})},
    )
    assert process.stdout is not None
    if stderr is not None:
        stderr.close()
    try:
        async with asyncio.timeout(START_S):
            line = (await process.stdout.readline()).decode().split()
        assert line[:1] == ["ready"], f"{module} did not start"
        yield ServiceProcess(process, line[1])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
