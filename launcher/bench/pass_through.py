"""nginx as a WebSocket pass-through in front of a gateway: what moving the same frames costs a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from launcher.bench.figures import cpu_s
from launcher.ports import free_port, is_free

__all__ = ["PassThrough", "is_installed", "pass_through"]

WITHIN_S = 10.0
# Debian keeps servers where only root looks for programs.
SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
# No log, no limits, and no buffering that a WebSocket would have: the least that nginx can do.
CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
worker_rlimit_nofile 65536;
events {{ worker_connections 32768; }}
http {{
    access_log off;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://{upstream};
            proxy_http_version 1.1;
            proxy_set_header Host {upstream};
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class PassThrough:
    """A running nginx with one worker."""

    address: str
    worker: int

    def cpu_s(self) -> float:
        """Seconds of CPU that its worker has used."""
        return cpu_s(self.worker)


def _program() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path=SBIN)


def is_installed() -> bool:
    """Whether this machine has nginx."""
    return _program() is not None


@contextlib.asynccontextmanager
async def pass_through(upstream: str, folder: Path) -> AsyncIterator[PassThrough]:
    """Start nginx in front of `upstream` (`host:port`); it ends with the block.

    Raises `TimeoutError`, and `FileNotFoundError` where there is none.
    """
    program = _program()
    if program is None:
        raise FileNotFoundError("nginx")
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(
        CONFIGURATION.format(folder=folder, port=port, upstream=upstream), encoding="utf-8"
    )
    arguments = ["-p", str(folder), "-c", str(configuration)]
    process = await asyncio.create_subprocess_exec(program, *arguments)
    try:
        yield PassThrough(f"127.0.0.1:{port}", await _worker(process.pid, port))
    finally:
        process.terminate()
        await process.wait()


async def _worker(master: int, port: int) -> int:
    async with asyncio.timeout(WITHIN_S):
        while is_free(port) or not (children := _children(master)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    return children[0]


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8")
    return [int(child) for child in listed.split()]
