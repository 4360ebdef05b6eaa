"""What one tenant has asked cannot be told from how soon another is answered (CASES 80)."""

from __future__ import annotations

from pathlib import Path

from tests.support.tenant_timing import Z_MAX, measure


def test_nobody_is_answered_sooner_for_what_another_tenant_asked(tmp_path: Path) -> None:
    """CASES 80, CVE-2025-46570: B gains nothing beyond noise; A, asking again, does: the test can see it."""
    own, foreign = measure(tmp_path, tries=40)
    assert own.z > Z_MAX
    assert abs(foreign.z) < Z_MAX
