"""A figure beside its target, and where figures are read from: the kernel."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Figure",
    "cpu_s",
    "more_files",
    "percentile",
    "resident_bytes",
    "unsent_bytes",
]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: what was measured, the target in words, the figure in words, whether it is met."""

    name: str
    target: str
    figure: str
    met: bool | None = None

    def row(self) -> str:
        """As a row of a Markdown table."""
        verdict = {True: "met", False: "**missed**", None: ""}[self.met]
        return f"| {self.name} | {self.target} | {self.figure} | {verdict} |"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed (nearest rank). Raises `ValueError` for none."""
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def cpu_s(pid: int) -> float:
    """User and system time that the process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """The process's memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def unsent_bytes(port: int) -> int:
    """What lies in the kernel's send queues of the connections that a server on `port` holds."""
    total = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues = line.split()[:5]
        if state == "01" and int(local.rpartition(":")[2], 16) == port:
            total += int(queues.partition(":")[0], 16)
    return total


def more_files(needed: int = 0) -> None:
    """Allow this process and those it starts as many open files as the system lets it.

    Raises `SystemExit` where these are fewer than `needed`.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        raise SystemExit(f"{needed:,} open files a process are needed, {hard:,} allowed: ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
