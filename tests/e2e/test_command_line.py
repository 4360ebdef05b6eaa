"""The `seedance` command as a user meets it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import seedance
from launcher.ports import free_port
from tests.support.mesh import local_mesh

pytestmark = pytest.mark.e2e


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "launcher", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)


def test_version() -> None:
    """`--version` prints the version alone."""
    done = _run("--version")
    assert (done.returncode, done.stdout.strip()) == (0, seedance.__version__)


@pytest.mark.parametrize("service", ["gateway", "router", "inference", "metering"])
def test_each_service_has_its_own_help(service: str) -> None:
    """`seedance SERVICE --help` lists the service's flags."""
    done = _run(service, "--help")
    assert done.returncode == 0
    assert "--port" in done.stdout


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    """A port in use: one line that says what to do, exit code 2."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        done = _run("up", "--engine", "script", "--port", str(port), "--data", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert f"port {port} is in use" in done.stderr
    assert "--port" in done.stderr


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    """A model path that is not there: one line that says what to do, exit code 2."""
    done = _run("up", "--model", str(tmp_path / "nothing"), "--data", str(tmp_path / "data"))
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "nothing" in done.stderr


def test_a_damaged_model_is_one_line(tmp_path: Path) -> None:
    """What an instance finds wrong with a model is the only thing said: no word of a restart."""
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(b"GGUF")
    port = str(free_port("127.0.0.1"))
    done = _run("up", "--model", str(damaged), "--port", port, "--data", str(tmp_path / "data"))
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "model.gguf is damaged" in done.stderr


def test_a_data_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    """A data folder that cannot be written: one line that says what to do, exit code 2."""
    (tmp_path / "file").touch()
    port = str(free_port("127.0.0.1"))
    done = _run(
        "up", "--engine", "script", "--port", port, "--data", str(tmp_path / "file" / "data")
    )
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "--data" in done.stderr


def test_ps_without_a_mesh_says_so(tmp_path: Path) -> None:
    """`seedance ps` where nothing runs: one line with the remedy."""
    done = _run("ps", "--data", str(tmp_path))
    assert done.returncode == 2
    assert "seedance up" in done.stderr


def test_bench_without_a_mesh_is_one_line() -> None:
    """Nobody listens: one line that says how to start somebody, exit code 2."""
    done = _run("bench", f"ws://127.0.0.1:{free_port()}")
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "seedance up" in done.stderr


@pytest.mark.timeout(150)
def test_bench_measures_and_reports(tmp_path: Path) -> None:
    """A table on standard output, a file and a page, of a mesh whose gateway has two workers, side by side."""
    told, page = tmp_path / "told.json", tmp_path / "page.html"
    with local_mesh(tmp_path / "mesh", "--gateways", "1", "--workers", "2") as mesh:
        done = _run(
            *("bench", mesh.url.replace("http", "ws"), "--against", mesh.url),
            *("--duration", "2", "--connections", "8", "--tokens", "20", "--token-ms", "5"),
            *("--output-json", str(told), "--html", str(page)),
        )
    assert done.returncode == 0, done.stderr
    assert "| tokens/s |" in done.stdout
    targets = json.loads(told.read_text())["targets"]
    assert [target["face"] for target in targets] == ["websocket", "sse"]
    for target in targets:
        assert target["asked"] == target["exact"] > 8
        assert not target["errors"]
    assert page.read_text().startswith("<!doctype html>")
