"""The whole of what `tests/contract/test_tenant_isolation.py` samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tenant_timing import Z_MAX, measure


@pytest.mark.timeout(300)
def test_two_hundred_tries_show_no_advantage(tmp_path: Path) -> None:
    """CASES 80: over 200 tries B's time to a first token says nothing of what A has asked."""
    own, foreign = measure(tmp_path, tries=200)
    assert own.z > Z_MAX
    assert abs(foreign.z) < Z_MAX
