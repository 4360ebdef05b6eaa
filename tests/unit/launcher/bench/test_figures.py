"""A figure beside its target."""

from __future__ import annotations

import os

import pytest

from launcher.bench.figures import Figure, cpu_s, percentile, resident_bytes


def test_a_row_says_whether_the_target_is_met() -> None:
    """Met, missed and no target each read as what they are."""
    assert Figure("stall", "≤ 5", "3", True).row() == "| stall | ≤ 5 | 3 | met |"
    assert Figure("stall", "≤ 5", "7", False).row().endswith("| **missed** |")
    assert Figure("stall", "", "7").row().endswith("|  |")


def test_a_percentile_is_a_value_that_was_measured() -> None:
    """Nearest rank: p99 of 100 values is the largest, of one value that one, of none an error."""
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 0.99) == 100
    assert percentile(values, 0.5) == 51
    assert percentile([7.0], 0.99) == 7
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


def test_the_kernel_tells_of_this_process() -> None:
    """This process has used time, and holds memory."""
    assert cpu_s(os.getpid()) > 0
    assert resident_bytes(os.getpid()) > 1024 * 1024
