"""docs/faults.md explains every fault that code and tests cite."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"
_CITED = re.compile(r"CASES ((?:\d+)(?:(?:, | and )\d+)*)")


def test_every_cited_fault_has_its_row() -> None:
    """A reader who meets a number finds what it means."""
    listed = set(re.findall(r"^\| (\d+) \|", PAGE.read_text(), flags=re.MULTILINE))
    found = subprocess.run(
        ["git", "ls-files", "*.py", "*.js", "*.lua", "*.proto"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in found.stdout.split():
        for numbers in _CITED.findall((ROOT / name).read_text()):
            cited = set(re.findall(r"\d+", numbers))
            assert {number.zfill(2) for number in cited} <= listed, name
