"""Whatever breaks, in whatever order: text, bills, epochs, windows and memory are as promised (§4)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import replay_command
from tests.simulation.world import simulate

SEEDS = 200
AT_ONCE = 20


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, AT_ONCE))
def test_promises_hold_whatever_breaks(first: int) -> None:
    """Faults of every kind change no byte and no bill, and nothing is left behind (CASES 50-67)."""
    for seed in range(first, first + AT_ONCE):
        breaches = simulate(seed).breaches
        assert not breaches, f"{breaches}; again: {replay_command(seed)}"


def test_a_seed_is_the_whole_story() -> None:
    """The same seed plays the same run, step by step, in any process."""
    seed, root = 11, Path(__file__).parents[2]
    here = simulate(seed, traced=True).trace
    for hash_seed in ("1", "2"):
        played = subprocess.run(
            [sys.executable, "-m", "tests.simulation", str(seed), "--trace"],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert played.stdout.splitlines()[: len(here)] == here
    assert len(here) > 10
