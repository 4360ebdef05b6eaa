"""Threads share loops, and step aside where cores are crowded."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from inference.native.build import SOURCES


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_pool_keeps_its_promises(tmp_path: Path) -> None:
    """Each item is done once, loops follow each other, and crowded runs back off within a bound."""
    program = tmp_path / "check"
    sources = [Path(__file__).with_name("thread_pool_test.cpp"), SOURCES / "thread_pool.cpp"]
    command = ["c++", "-std=c++17", "-O2", "-pthread", f"-I{SOURCES}", *map(str, sources)]
    subprocess.run([*command, "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
