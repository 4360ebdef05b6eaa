"""The short form of the benchmarks: what is let through, and what is not."""

from __future__ import annotations

import json

import pytest

from launcher.bench.short import BASELINE, LOADS, Measured, verdicts

BEFORE = {"calls": 100.0, "ratio": 5.0}


def _fine(calls: float, *ratios: float) -> list[bool]:
    return [fine for _, fine in verdicts("a load", Measured(calls, list(ratios)), BEFORE)]


def test_what_is_as_before_is_let_through() -> None:
    """The baseline's own figures are met, and so is what has become cheaper."""
    assert _fine(100.0, 5.0, 5.0, 5.0, 5.0) == [True, True]
    assert _fine(80.0, 4.0, 4.0, 4.0, 4.0) == [True, True]


def test_three_calls_in_a_hundred_are_seen() -> None:
    """Calls do not depend on the machine: few of them more are told from none."""
    assert _fine(101.0, 5.0, 5.0, 5.0, 5.0) == [True, True]
    assert _fine(103.0, 5.0, 5.0, 5.0, 5.0) == [False, True]


def test_time_counts_beyond_what_rounds_differ() -> None:
    """Twice the time is dearer where rounds agree, and says nothing where they do not."""
    assert _fine(100.0, 10.0, 10.0, 10.0, 10.0) == [True, False]
    assert _fine(100.0, 10.0, 10.0, 25.0, 14.0, 20.0, 18.0, 10.0) == [True, True]


@pytest.mark.parametrize("load", LOADS)
def test_baseline_has_every_load(load: str) -> None:
    """What CI measures has something to be compared with, for each Python that has a baseline."""
    for baseline in json.loads(BASELINE.read_text()).values():
        assert baseline[load].keys() == BEFORE.keys()
