"""The web SDK, which a browser or Node runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WEB = ROOT / "clients" / "web"
NODE = shutil.which("node")


def test_the_gateway_serves_this_very_sdk() -> None:
    """The page's copy is the SDK, byte for byte: `cp clients/web/seedance.js gateway/static/`."""
    served = ROOT / "gateway" / "static" / "seedance.js"
    assert served.read_bytes() == (WEB / "seedance.js").read_bytes()


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_the_web_sdk_replays_the_vectors() -> None:
    """The web SDK's own tests pass, golden conversations among them."""
    assert NODE is not None
    files = sorted(str(path) for path in (WEB / "test").glob("*.test.js"))
    ran = subprocess.run([NODE, "--test", *files], capture_output=True, timeout=50, check=False)
    assert ran.returncode == 0, ran.stdout.decode()[-4000:]
