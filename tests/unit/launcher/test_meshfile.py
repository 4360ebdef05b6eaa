"""The list of running processes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from launcher.meshfile import MESH_FILE, RunningProcess, gateway_url, read_mesh, write_mesh

ME = RunningProcess("gateway", "gateway-0", os.getpid(), "127.0.0.1:8080", "gateway-0.log")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """A live process comes back with every field."""
    write_mesh(tmp_path, [ME])
    assert read_mesh(tmp_path) == [ME]


def test_the_file_has_the_documented_form(tmp_path: Path) -> None:
    """Other programs read `processes` with kind, name, pid, address, log, tls."""
    write_mesh(tmp_path, [ME])
    content = json.loads((tmp_path / MESH_FILE).read_text())
    assert set(content) == {"processes"}
    assert set(content["processes"][0]) == {"kind", "name", "pid", "address", "log", "tls"}


def test_no_draft_is_left_behind(tmp_path: Path) -> None:
    """The file is replaced in one step; nothing else lies about."""
    write_mesh(tmp_path, [ME])
    write_mesh(tmp_path, [])
    assert [p.name for p in tmp_path.iterdir()] == [MESH_FILE]


def test_dead_processes_are_not_listed(tmp_path: Path) -> None:
    """A file left by a killed launcher does not pretend that its processes live."""
    dead = RunningProcess("router", "router-0", 2**22 + 1, "127.0.0.1:1", "")
    write_mesh(tmp_path, [dead, ME])
    assert read_mesh(tmp_path) == [ME]


def test_no_file_means_no_processes(tmp_path: Path) -> None:
    """A folder without a mesh is an empty list."""
    assert read_mesh(tmp_path) == []


def test_a_client_finds_the_meshs_gateway(tmp_path: Path) -> None:
    """In the folder of a mesh that is its first gateway, elsewhere the usual port."""
    assert gateway_url(tmp_path) == "ws://127.0.0.1:8080"
    write_mesh(
        tmp_path,
        [
            RunningProcess("router", "router-0", os.getpid(), "127.0.0.1:1", "log"),
            RunningProcess("gateway", "gateway-0", os.getpid(), "127.0.0.1:9000", "log"),
            RunningProcess("gateway", "gateway-1", os.getpid(), "127.0.0.1:9001", "log"),
        ],
    )
    assert gateway_url(tmp_path) == "ws://127.0.0.1:9000"


def test_a_gateway_with_a_certificate_is_spoken_to_by_tls(tmp_path: Path) -> None:
    """Who runs a mesh with `--tls-cert` need not say wss:// to its own commands."""
    write_mesh(tmp_path, [replace(ME, tls=True)])
    assert gateway_url(tmp_path) == "wss://127.0.0.1:8080"
