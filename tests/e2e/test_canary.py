"""A new version that is worse than the old one does little harm, and is taken out by itself."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.mesh import LocalMesh, local_mesh
from tests.support.scripts import script
from tests.support.waiting import wait_until_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]

ROUND = 60


@contextlib.contextmanager
def _canary(mesh: LocalMesh) -> Iterator[None]:
    """A canary instance in that mesh, whose model always fails."""
    flags = ["--engine", "script", "--instance-id", "canary-0", "--instance-class", "*"]
    flags += ["--canary", "--port", "0", "--router", mesh.processes("router")[0].address]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.failing_instance", *flags],
        stderr=subprocess.DEVNULL,  # it says so for every step
    )
    try:
        wait_until_sync(lambda: "canary-0" in _command(mesh, "status"), within_s=20)
        yield
    finally:
        process.kill()
        process.wait()


def _command(mesh: LocalMesh, *arguments: str) -> str:
    argv = [sys.executable, "-m", "launcher", "canary", *arguments, "--data", str(mesh.data)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout


def _ask(mesh: LocalMesh, user: str, headers: dict[str, str]) -> int:
    body = json.dumps(
        {"user": user, "messages": [{"role": "user", "content": script([b"ok"])}]}
    ).encode()
    request = urllib.request.Request(
        f"{mesh.url}/v1/chat/completions",
        data=body,
        headers={"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def _round(mesh: LocalMesh, number: int, **headers: str) -> Counter[int]:
    """Requests of many users; how often each status came."""
    users = [f"user-{number}-{n}" for n in range(ROUND)]
    with ThreadPoolExecutor(4) as threads:
        return Counter(threads.map(lambda user: _ask(mesh, user, headers), users))


def test_a_bad_canary_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 30 % of the keys its failures are seen; then nobody is sent there, not even who asks."""
    monkeypatch.setenv("SEEDANCE_MESH_SECRET", "of this test")
    with local_mesh(tmp_path / "data") as mesh, _canary(mesh):
        assert "phase      running" in _command(mesh, "set", "30")
        failed = 0

        def rolled_back() -> bool:
            nonlocal failed
            failed += _round(mesh, failed)[500]
            return "rolled_back" in _command(mesh, "status")

        wait_until_sync(rolled_back, within_s=60)
        assert failed >= 3
        shown = _command(mesh, "status")
        # On a machine that is busy enough its event loop may be what is noticed first.
        assert "reason     error rate:" in shown or "reason     pauses:" in shown
        wait_until_sync(lambda: _round(mesh, -1)[500] == 0, within_s=10)
        assert _round(mesh, -2, **{"X-Canary": "true"}) == {200: ROUND}
        # The gateways know it: a router that has just started learns it from them.
        mesh.back("router-0", mesh.kill("router-0"))
        wait_until_sync(lambda: "rolled_back" in _command(mesh, "status"), within_s=20)
        assert _round(mesh, -3, **{"X-Canary": "true"}) == {200: ROUND}
