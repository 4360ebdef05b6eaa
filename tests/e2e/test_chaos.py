"""A small chaos: what `make chaos` does a thousand times."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.chaos.plan import KILLS, KINDS
from tests.chaos.runs import ChaosOptions, chaos

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

RUNS, SEED = 8, 20


async def test_freezes_cuts_flushes_and_clocks_cost_nothing(tmp_path: Path) -> None:
    """CASES 55, 116: processes stop and go on, sockets end at any byte, the store forgets all, clocks jump.

    Every text stays what it is in calm, and every stream is billed once. (Kills: test_kills.py.)
    """
    compiler = shutil.which("cc")
    kinds = [k for k in KINDS if k not in KILLS and (k != "clock" or compiler)]
    report = await chaos(ChaosOptions(tmp_path, RUNS, SEED, kinds, clients=3))
    assert not report.failures
    assert report.runs == RUNS
    assert report.streams > RUNS
