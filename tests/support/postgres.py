"""A real PostgreSQL server for a command: `python -m tests.support.postgres COMMAND…`.

It is made in a folder of its own out of the system's package (Debian: `postgresql`), listens on a free
port of loopback, and is gone afterwards. The command finds its URL in SEEDANCE_TEST_POSTGRES. PostgreSQL
refuses to run as root: then it runs as the user that the package has made.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["main", "running_postgres"]

_PLACES = "/usr/lib/postgresql/*/bin"
_USER = "postgres"


def _program(name: str) -> str:
    found = shutil.which(name)
    packaged = sorted(Path("/").glob(f"{_PLACES.lstrip('/')}/{name}"))
    if not found and not packaged:
        sys.exit(f"{name} is not there: apt-get install -y --no-install-recommends postgresql")
    # The package's own first: what is on the path may be a wrapper.
    return str(packaged[-1]) if packaged else str(found)


def _run(program: str, *arguments: str) -> None:
    user = None if os.geteuid() else _USER
    subprocess.run(
        [_program(program), *arguments],
        stdout=subprocess.DEVNULL,
        cwd="/",
        check=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_postgres() -> Iterator[str]:
    """The SQLAlchemy URL of an empty database, for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        if not os.geteuid():
            os.chown(folder, *pwd.getpwnam(_USER)[2:4])
        init = ("-U", _USER, "--auth", "trust", "--no-sync", "-E", "UTF8")
        _run("initdb", "-D", str(data), *init)
        port = _free_port()
        control = ("pg_ctl", "-D", str(data), "-w", "-s")
        options = f"-h 127.0.0.1 -p {port} -k {folder}"
        _run(*control, "-l", f"{folder}/log", "-o", options, "start")
        try:
            yield f"postgresql+psycopg://{_USER}@127.0.0.1:{port}/postgres"
        finally:
            _run(*control, "-m", "immediate", "stop")


def main(command: Sequence[str]) -> int:
    """Run the command beside a server; its exit status."""
    with running_postgres() as url:
        return subprocess.run(
            command, env=os.environ | {"SEEDANCE_TEST_POSTGRES": url}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
