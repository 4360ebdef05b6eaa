"""One gateway process for each core, all listening on one port.

Each binds the port itself (SO_REUSEPORT): the system spreads new connections over whoever listens,
by their addresses, and a worker that dies is out of the turn at once, with no parent that has to
notice. This process holds the port without listening, starts each worker again when it ends, and
passes signals on. Sessions are in the store, so that any worker serves a resume.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence

from gateway.config import GatewaySettings
from gateway.server import bind

__all__ = ["run_workers"]

log = logging.getLogger("gateway")

RESTART_PAUSE_S, RESTART_PAUSE_MAX_S = 0.1, 5.0
# A worker that lived this long was healthy: its next start is at once again.
HEALTHY_AFTER_S = 10.0
# Beyond its own grace time a worker is killed.
STOP_MARGIN_S = 5.0
# How long a port in use may take to become free.
PORT_WAIT_S, PORT_POLL_S = 3.0, 0.05
# A process that says it was told something wrong will say so again (`mesh.settings`).
EXIT_USAGE = 2


class _Workers:
    """The workers of one port."""

    def __init__(self, settings: GatewaySettings, flags: Sequence[str]) -> None:
        self._settings = settings
        self._flags = flags
        self._live: dict[int, Process] = {}
        self._ready: set[int] = set()
        self._stopping = asyncio.Event()
        self.refused = asyncio.Event()

    async def keep(self, number: int) -> None:
        """Run a worker, and again whenever it ends, until `stop`."""
        loop = asyncio.get_running_loop()
        pause = RESTART_PAUSE_S
        while not self._stopping.is_set():
            born = loop.time()
            code = await self._run(number)
            if self._stopping.is_set():
                return
            if code == EXIT_USAGE:
                self.refused.set()
                return
            log.warning("worker %d ended (%d), starting again", number, code)
            if loop.time() - born > HEALTHY_AFTER_S:
                pause = RESTART_PAUSE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(pause * 2, RESTART_PAUSE_MAX_S)

    async def _run(self, number: int) -> int:
        settings = self._settings
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", *self._flags),
            *("--port", str(settings.port), "--worker", str(number)),
            *("--announce", "--die-with-parent"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C in a terminal reaches this process alone, which passes it on once.
            start_new_session=True,
        )
        self._live[number] = process
        if self._stopping.is_set():
            process.terminate()
        assert process.stdout is not None  # noqa: S101 - it was asked for
        if await process.stdout.readline():
            self._serves(number)
        code = await process.wait()
        del self._live[number]
        return code

    def _serves(self, number: int) -> None:
        """A worker takes requests; once all have, this process says what one alone would say."""
        already = len(self._ready) == self._settings.workers
        self._ready.add(number)
        if self._settings.announce and not already and len(self._ready) == self._settings.workers:
            sys.stdout.write(f"ready {self._settings.host}:{self._settings.port}\n")
            sys.stdout.flush()

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> None:
        """Drain all; none is started again."""
        self._stopping.set()
        for process in list(self._live.values()):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signum)


async def run_workers(settings: GatewaySettings, flags: Sequence[str], stop: asyncio.Event) -> None:
    """Keep `settings.workers` processes alive until `stop` is set, then drain them all.

    `flags` are this process's own; each worker is given them and its number. A worker that was told
    something wrong ends all of them with its exit status.
    """
    port = await _port_of_its_own(settings)
    with bind(settings.host, port, shared=True, listen=False):
        workers = _Workers(settings.model_copy(update={"port": port}), flags)
        async with asyncio.TaskGroup() as tasks:
            keeping = [tasks.create_task(workers.keep(n)) for n in range(settings.workers)]
            ends = [tasks.create_task(stop.wait()), tasks.create_task(workers.refused.wait())]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            workers.stop()
            for end in ends:
                end.cancel()
            await asyncio.wait(keeping, timeout=settings.drain_grace_s + STOP_MARGIN_S)
            workers.stop(signal.SIGKILL)
    if workers.refused.is_set():
        raise SystemExit(EXIT_USAGE)


async def _port_of_its_own(settings: GatewaySettings) -> int:
    """The port, which nobody listens on: others of this user could come to share it by mistake.

    Workers of a parent that was killed are given a moment: they stop listening as they drain.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + PORT_WAIT_S
    while settings.port and not _is_free(settings) and loop.time() < give_up_at:  # noqa: ASYNC110 - the system's affair
        await asyncio.sleep(PORT_POLL_S)
    with bind(settings.host, settings.port) as alone:
        port: int = alone.getsockname()[1]
    return port


def _is_free(settings: GatewaySettings) -> bool:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((settings.host, settings.port))
        except OSError:
            return False
    return True
