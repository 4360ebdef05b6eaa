"""`seedance key` makes a key and says what the tenants file holds of it."""

from __future__ import annotations

import hashlib
import re

from typer.testing import CliRunner

from launcher.cli import app


def test_a_key_is_long_random_and_printed_with_its_hash() -> None:
    """Standard output is the key alone, for a secret's store; its hash is beside it, for the file."""
    first, second = (CliRunner().invoke(app, ["key"]) for _ in range(2))
    key = first.stdout.strip()
    assert re.fullmatch(r"sk-[\w-]{43}", key)
    assert key != second.stdout.strip()
    assert hashlib.sha256(key.encode()).hexdigest() in first.stderr
