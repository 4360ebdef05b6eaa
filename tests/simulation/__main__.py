"""`python -m tests.simulation`: many seeds on all cores, or one with its trace.

python -m tests.simulation --seeds 10000            # 1 to 10000, failing ones are printed
python -m tests.simulation 1234 --trace             # one of them again, step by step
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterable

from rich.progress import track

from tests.simulation.world import Verdict, simulate

__all__ = ["main"]

SEEDS = 10_000
CHUNK = 20


def replay_command(seed: int) -> str:
    """How to see a run again."""
    return f"python -m tests.simulation {seed} --trace"


def _one(seed: int, *, traced: bool) -> int:
    verdict = simulate(seed, traced=traced)
    lines = [*verdict.trace, *(f"BREACH {breach}" for breach in verdict.breaches)]
    sys.stdout.write("\n".join([*lines, _summary([verdict], 1)]) + "\n")
    return bool(verdict.breaches)


def _summary(failed: Iterable[Verdict], count: int) -> str:
    broken = sum(bool(verdict.breaches) for verdict in failed)
    return f"{count} runs, {broken} with a broken promise"


def _many(first: int, count: int) -> int:
    failed = []
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        runs = pool.imap_unordered(simulate, range(first, first + count), CHUNK)
        for verdict in track(runs, "simulating", total=count):
            if verdict.breaches:
                failed.append(verdict)
                sys.stdout.write(
                    f"\nseed {verdict.seed}: {verdict.breaches[0]}\n"
                    f"  again: {replay_command(verdict.seed)}\n"
                )
                sys.stdout.flush()
    sys.stdout.write(_summary(failed, count) + "\n")
    return bool(failed)


def main() -> int:
    """Read the command line and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="one run")
    parser.add_argument("--trace", action="store_true", help="print what happened in it")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="so many runs")
    parser.add_argument("--first", type=int, default=1, help="beginning with this one")
    options = parser.parse_args()
    if options.seed is not None:
        return _one(options.seed, traced=options.trace)
    return _many(options.first, options.seeds)


if __name__ == "__main__":
    sys.exit(main())
