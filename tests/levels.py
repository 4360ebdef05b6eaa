"""`python -m tests.levels`: the levels of docs/testing.md, three at a time.

A process for each level: hundreds of event loops with gRPC's threads in one process are a test of gRPC,
not of ours. Integration and end-to-end tests mostly wait, and some promise to be quick; the others mostly
compute, and take what is left of the machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

__all__ = ["Level", "Outcome", "main", "run_level"]

AT_ONCE = 3
STEPS_ASIDE = ("nice", "-n", "10")
_PROGRESS = re.compile(r"\[ *(\d+)%\]$")
# One level's report is printed whole, not in between another's lines.
_printing = threading.Lock()


class Level(NamedTuple):
    """What pytest is told, and what stands before it on the command line."""

    name: str
    arguments: tuple[str, ...]
    prefix: tuple[str, ...] = ()


LEVELS = (
    Level("e2e", ("-m", "not compose", "tests/e2e")),
    Level("integration", ("tests/integration",)),
    Level(
        "unit",
        ("tests/unit", "tests/property", "tests/contract", "tests/test_tidy.py"),
        STEPS_ASIDE,
    ),
    Level("simulation", ("tests/simulation",), STEPS_ASIDE),
)


class Outcome(NamedTuple):
    """How a level ended: pytest's exit code, and its last line."""

    name: str
    code: int
    said: str


def _tell(name: str, text: str) -> None:
    with _printing:
        sys.stdout.write(f"{name:>12}  {text}\n")
        sys.stdout.flush()


def run_level(level: Level) -> Outcome:
    """Run one level; its progress is told as it comes, its failures are printed at its end."""
    began = time.monotonic()
    _tell(level.name, "begins")
    report: list[str] = []
    argv = [*level.prefix, sys.executable, "-m", "pytest", "--quiet", "-r", "fEs", *level.arguments]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pytest:
        assert pytest.stdout is not None
        for line in pytest.stdout:
            if found := _PROGRESS.search(line.rstrip()):
                _tell(level.name, f"{found[1]:>3} % after {time.monotonic() - began:.0f} s")
            else:
                report.append(line)
    with _printing:
        sys.stdout.write("".join(["\n", *report, "\n"]))
    return Outcome(level.name, pytest.returncode, report[-1].strip() if report else "said nothing")


def main() -> int:
    """Run them all; 0 when every one passed."""
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as lanes:
        outcomes = list(lanes.map(run_level, LEVELS))
    _tell("all", f"after {time.monotonic() - began:.0f} s")
    for outcome in outcomes:
        _tell(outcome.name, f"{'FAILED' if outcome.code else 'passed'}: {outcome.said}")
    return int(any(outcome.code for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
