"""The whole mesh as real processes, for end-to-end tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from launcher.meshfile import RunningProcess, read_mesh
from launcher.ports import free_port
from tests.support.waiting import wait_until_sync

__all__ = ["LocalMesh", "local_mesh"]

START_S = 60.0
STOP_S = 25.0
PORT_TRIES = 3


class LocalMesh:
    """A running `seedance up`."""

    def __init__(self, process: subprocess.Popen[str], data: Path, url: str) -> None:
        self.process = process
        self.data = data
        self.url = url

    @property
    def ws(self) -> str:
        """The WebSocket endpoint of the first gateway."""
        return self.url.replace("http://", "ws://") + "/v2/infer"

    def processes(self, kind: str) -> list[RunningProcess]:
        """The live processes of a kind, by `mesh.json`."""
        return [p for p in read_mesh(self.data) if p.kind == kind]

    def named(self, name: str) -> RunningProcess:
        """A live process by name."""
        return next(p for p in read_mesh(self.data) if p.name == name)

    def kill(self, name: str, signum: int = signal.SIGKILL) -> int:
        """Send a signal to a process by name; returns its id."""
        pid = self.named(name).pid
        os.kill(pid, signum)
        return pid

    def back(self, name: str, old_pid: int) -> None:
        """Wait until the process has been started again."""

        def reborn() -> bool:
            return any(p.name == name and p.pid != old_pid for p in read_mesh(self.data))

        wait_until_sync(reborn, within_s=20)


def _start(argv: list[str]) -> tuple[subprocess.Popen[str], str]:
    """The command on a free port, and its URL; another test may be quicker to take that port."""
    for tries_left in reversed(range(PORT_TRIES)):
        process = subprocess.Popen(
            [*argv, "--port", str(free_port())],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            return process, _read_ready(process)
        except AssertionError as error:
            if not tries_left or "Address already in use" not in str(error):
                raise
    raise AssertionError


def _read_ready(process: subprocess.Popen[str]) -> str:
    """The `ready` line's URL; fails with what the command said instead."""
    line: list[str] = []
    reader = threading.Thread(target=lambda: line.append(process.stdout.readline()), daemon=True)
    reader.start()
    reader.join(START_S)
    if not line or not line[0].startswith("ready "):
        process.kill()
        said = process.stderr.read()
        raise AssertionError(f"no ready line: {line!r} {said!r}")
    return line[0].removeprefix("ready ").strip()


@contextlib.contextmanager
def local_mesh(data: Path, *flags: str, engine: str = "script") -> Iterator[LocalMesh]:
    """Start `seedance up` on free ports, and end it; its logs lie in `data/logs`."""
    argv = [sys.executable, "-m", "launcher", "up", "--engine", engine, "--data", str(data)]
    process, url = _start([*argv, *flags])
    try:
        yield LocalMesh(process, data, url)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
