"""The short form of `make fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.runs import FuzzOptions, fuzz

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

EXAMPLES = 300


def test_nonsense_hurts_nobody(tmp_path: Path) -> None:
    """CASES 13, 14, 20, 22: no fault of ours, nothing left behind, memory flat, others' streams whole."""
    report = fuzz(FuzzOptions(tmp_path, EXAMPLES, 1))
    assert not report.verdict.faults, "\n".join(report.verdict.faults)
    assert report.sent >= EXAMPLES
    assert report.streams
    assert report.verdict.answers["HTTP 200"]
