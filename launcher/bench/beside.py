"""A program of the benchmarks that runs in a process of its own, so that its CPU time is not the bench's."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

__all__ = ["beside"]


@contextlib.contextmanager
def beside(module: str) -> Iterator[str]:
    """Run `python -m module`, which says its port on the first line; its `host:port`."""
    argv = [sys.executable, "-m", module]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()
