"""Keeps the processes of one machine's mesh alive, and ends them all.

One asyncio task per process: start, wait for its end, start again after a pause that grows. The
supervisor is the only writer of `mesh.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launcher.blueprint import ProcessSpec
from launcher.environment import part_of
from launcher.meshfile import RunningProcess, write_mesh
from launcher.probes import serves
from mesh.lifecycle import die_with_parent
from mesh.rpc.identity import MeshIdentity

__all__ = ["StartFailedError", "Supervisor"]

RESTART_PAUSE_S = 0.1
RESTART_PAUSE_MAX_S = 5.0
# A process that lived this long was healthy: its next restart is immediate again.
HEALTHY_AFTER_S = 10.0
PROBE_PAUSE_S = 0.05
# A process that ended so often without ever serving will not serve the next time either.
STARTS_MAX = 5
# A process that says it was told something wrong will say so again: no restart helps.
EXIT_USAGE = 2
# Time between SIGTERM and SIGKILL when the mesh ends.
STOP_GRACE_S = 10.0

# Who ends first: what takes work in, then what does it, then what remembers it.
STOP_ORDER = ("gateway", "inference", "metering", "router", "store")


class StartFailedError(Exception):
    """A process ended before it served; the message is its own last word."""


class Supervisor:
    """Runs the specs. `on_change(name, what)` is told of every start and end.

    `environment` is the whole mesh's; each process is given the part that it knows. `identity` is
    shown to services when they are asked whether they serve.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        data: Path,
        *,
        environment: Mapping[str, str],
        restart: bool = True,
        on_change: Callable[[str, str], None] = lambda _name, _what: None,
        identity: MeshIdentity | None = None,
    ) -> None:
        self._specs = list(specs)
        self._data = data
        self._environment = environment
        self._restart = restart
        self._on_change = on_change
        self._identity = identity
        self._live: dict[str, Process] = {}
        self._served: set[str] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._failed = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start everything and return when all of it serves.

        Raises `StartFailedError` when a process ends with the exit code for misuse (2), or time and
        again before it has served.
        """
        for spec in self._specs:
            self._keepers.append(asyncio.create_task(self._keep(spec), name=spec.name))
        probing = asyncio.create_task(self._until_all_serve())
        await asyncio.wait({probing, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            self._failed.result()
        await probing

    async def wait(self) -> None:
        """Return when a process failed for good (raises `StartFailedError`); else never."""
        await self._failed

    async def stop(self, *, at_once: bool = False) -> None:
        """End all processes, kind by kind; what has not ended after the grace time is killed."""
        self._stopping.set()
        for kind in STOP_ORDER:
            names = [s.name for s in self._specs if s.kind == kind and s.name in self._live]
            await asyncio.gather(*(self._end(self._live[n], at_once=at_once) for n in names))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        write_mesh(self._data, [])

    async def _end(self, process: Process, *, at_once: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _keep(self, spec: ProcessSpec) -> None:
        try:
            await self._keep_alive(spec)
        except OSError as error:
            # No such program, no memory, no room on the disk: nobody else would hear of it.
            self._fail(f"cannot keep {spec.name} running: {error.strerror or error}")

    async def _keep_alive(self, spec: ProcessSpec) -> None:
        loop = asyncio.get_running_loop()
        pause, starts = RESTART_PAUSE_S, 0
        while not self._stopping.is_set():
            born = loop.time()
            starts += 1
            process = await self._spawn(spec)
            if self._stopping.is_set():
                # `stop` came in between and did not see this one.
                await self._end(process, at_once=True)
            code = await process.wait()
            self._live.pop(spec.name, None)
            self._publish()
            if self._stopping.is_set():
                return
            if code == EXIT_USAGE:
                self._fail(_last_word(spec.log) or spec.name)
                return
            if spec.name not in self._served and (not self._restart or starts >= STARTS_MAX):
                times = f"{starts} times" if starts > 1 else "once"
                self._fail(f"{spec.name} ended {times} before it served; see {spec.log}")
                return
            self._on_change(spec.name, f"ended ({code})")
            if not self._restart:
                return
            if loop.time() - born > HEALTHY_AFTER_S:
                pause = RESTART_PAUSE_S
            await asyncio.sleep(pause)
            pause = min(pause * 2, RESTART_PAUSE_MAX_S)

    async def _spawn(self, spec: ProcessSpec) -> Process:
        with spec.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=part_of(spec.kind, self._environment),
                # Its own group: Ctrl-C in the terminal reaches the supervisor alone, which ends the
                # others in order. Should the supervisor be killed, the kernel ends them.
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._live[spec.name] = process
        self._publish()
        self._on_change(spec.name, "started")
        return process

    async def _until_all_serve(self) -> None:
        await asyncio.gather(*(self._until_serving(spec) for spec in self._specs))

    async def _until_serving(self, spec: ProcessSpec) -> None:
        while not await serves(spec, self._identity):  # noqa: ASYNC110 - the answer comes from another process
            await asyncio.sleep(PROBE_PAUSE_S)
        self._served.add(spec.name)
        self._on_change(spec.name, "serving")

    def _fail(self, message: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(StartFailedError(message))

    def _publish(self) -> None:
        entries = [
            RunningProcess(
                s.kind,
                s.name,
                self._live[s.name].pid,
                s.address,
                str(s.log),
                tls=s.probe == "https",
            )
            for s in self._specs
            if s.name in self._live
        ]
        write_mesh(self._data, entries)


def _last_word(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("seedance: ") if lines else ""
