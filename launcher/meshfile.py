"""`DIR/mesh.json`: who runs, where, rewritten whole at every change."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["MESH_FILE", "RunningProcess", "gateway_url", "read_mesh", "write_mesh"]

MESH_FILE = "mesh.json"
GATEWAY_DEFAULT = "127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """One live process of the mesh: `kind` store, router, inference, metering or gateway.

    `tls`: it shows its clients a certificate.
    """

    kind: str
    name: str
    pid: int
    address: str
    log: str
    tls: bool = False


def write_mesh(data: Path, processes: Sequence[RunningProcess]) -> None:
    """Replace the file in one step, so that a reader never sees half of it."""
    target = data / MESH_FILE
    draft = target.with_suffix(".json.new")
    draft.write_text(json.dumps({"processes": [asdict(p) for p in processes]}, indent=2) + "\n")
    draft.replace(target)


def read_mesh(data: Path) -> list[RunningProcess]:
    """The processes of the file that still live; an empty list when there is no file."""
    try:
        content = json.loads((data / MESH_FILE).read_text())
    except FileNotFoundError:
        return []
    found = [RunningProcess(**entry) for entry in content["processes"]]
    return [process for process in found if _lives(process.pid)]


def gateway_url(data: Path) -> str:
    """Where a client in this folder finds a gateway: that of the mesh on `data`, else port 8080 here."""
    for process in read_mesh(data):
        if process.kind == "gateway":
            return f"{'wss' if process.tls else 'ws'}://{process.address}"
    return f"ws://{GATEWAY_DEFAULT}"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
