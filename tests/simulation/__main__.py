"""`python -m tests.simulation`: many seeds, or one with its trace."""

from __future__ import annotations

import sys
import time

from tests.simulation.world import simulate

if __name__ == "__main__":
    seed = int(sys.argv[1])
    last = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].isdigit() else seed
    for number in range(seed, last + 1):
        began = time.perf_counter()
        verdict = simulate(number, traced="--trace" in sys.argv)
        print("\n".join(verdict.trace))
        print(number, verdict.breaches, f"{time.perf_counter() - began:.3f}s", flush=True)
