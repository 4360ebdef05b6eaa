"""`seedance up`: the whole mesh on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from launcher.blueprint import ProcessSpec, UpOptions, build
from launcher.data_folder import make_data_folder
from launcher.environment import keep_mesh_secret, mesh_environment, overruled, unknown_to_all
from launcher.files import mesh_identity
from launcher.ports import is_free
from launcher.supervisor import StartFailedError, Supervisor
from mesh.settings import exit_with

__all__ = ["run_up"]


@contextlib.contextmanager
def _sole_owner(data: Path) -> Iterator[None]:
    """Hold the data folder: two meshes on one folder would write over each other."""
    try:
        make_data_folder(data)
        lock = (data / "lock").open("w")
    except OSError as error:
        exit_with(f"{data} cannot be written ({error.strerror}); choose another folder with --data")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            exit_with(
                f"a mesh already runs on {data}; stop it, or choose another folder with --data"
            )
        yield


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("[progress.description]{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class _Board:
    """Shows how many processes serve while the mesh starts, and what dies afterwards."""

    def __init__(self, progress: Progress, specs: list[ProcessSpec], *, restart: bool) -> None:
        self._progress = progress
        self._logs = {spec.name: spec.log for spec in specs}
        self._then = ", starting again" if restart else ""
        self._task = progress.add_task("starting the mesh", total=len(specs))

    def tell(self, name: str, what: str) -> None:
        if what == "serving":
            self._progress.update(self._task, advance=1, description=f"{name} serves")
        elif what.startswith("ended"):
            log = self._logs[name]
            sys.stderr.write(f"seedance: {name} {what}{self._then}; its log: {log}\n")


async def _run(specs: list[ProcessSpec], options: UpOptions, *, restart: bool) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    at_once = asyncio.Event()

    def interrupt() -> None:
        if not asked.is_set():
            sys.stderr.write("seedance: stopping; once more ends it at once\n")
        (at_once if asked.is_set() else asked).set()

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, interrupt)
    environment = mesh_environment(os.environ)
    keep_mesh_secret(environment, options.data)
    with _progress() as progress:
        board = _Board(progress, specs, restart=restart)
        supervisor = Supervisor(
            specs,
            options.data,
            environment=environment,
            identity=mesh_identity(options.mtls),
            restart=restart,
            on_change=board.tell,
        )
        starting = asyncio.create_task(supervisor.start())
        stop = asyncio.create_task(asked.wait())
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if starting.done():
            starting.result()
            first = next(spec for spec in specs if spec.kind == "gateway")
            print(f"ready {first.probe}://{first.address}", flush=True)
            failing = asyncio.create_task(supervisor.wait())
            await asyncio.wait({failing, stop}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
            failing.cancel()
    except StartFailedError as error:
        await supervisor.stop()
        exit_with(str(error))
    finally:
        starting.cancel()
        stop.cancel()
        await asyncio.gather(starting, stop, return_exceptions=True)
        await _stop(supervisor, at_once)


async def _stop(supervisor: Supervisor, at_once: asyncio.Event) -> None:
    """End in order; a second Ctrl-C ends at once."""
    gently = asyncio.create_task(supervisor.stop())
    hurry = asyncio.create_task(at_once.wait())
    await asyncio.wait({gently, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not gently.done():
        await supervisor.stop(at_once=True)
    hurry.cancel()
    await gently


def run_up(options: UpOptions, *, restart: bool = True) -> None:
    """Start the mesh, print `ready http://…`, keep it alive until SIGINT or SIGTERM, end it all."""
    if unknown := unknown_to_all(os.environ):
        exit_with(f"unknown environment variable {unknown[0]}; docs/operations.md lists them all")
    if not is_free(options.port):
        exit_with(f"port {options.port} is in use; choose another with --port")
    with _sole_owner(options.data):
        try:
            specs = build(options)
        except OSError as error:
            exit_with(f"{error}; choose another with --port")
        if unheard := overruled(os.environ, specs):
            exit_with(
                f"{unheard[0]} would change nothing: this command tells its services that itself; "
                "`seedance up --help` has its flags, and a service started alone hears the variable"
            )
        asyncio.run(_run(specs, options, restart=restart))
