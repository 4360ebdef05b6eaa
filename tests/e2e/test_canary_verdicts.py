"""A canary that answers later, or stands still, is found out; one that is like the others is not.

Beside the others it is asked as much as they, over WebSockets that ask for it by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.mesh import LocalMesh, local_mesh
from tests.support.scripts import script
from tests.support.waiting import wait_until_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

# What a first token takes at any instance: what the machine adds is little beside it.
FIRST_MS = 60
ROUND = 8
# Below some 900 of the others' requests nothing is said of first tokens.
ENOUGH = 1_200
LEAST = "0.01"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMesh]:
    """One instance, one gateway; its secret is what the launcher made."""
    data = tmp_path_factory.mktemp("mesh") / "data"
    with local_mesh(data, "--instances", "1", "--gateways", "1") as running:
        yield running


@contextlib.contextmanager
def _canary(mesh: LocalMesh, oddity: str) -> Iterator[str]:
    """A canary instance, once the router knows it; its id."""
    name = f"canary-{oddity}"
    flags = ["--engine", "script", "--instance-id", name, "--instance-class", "*", "--canary"]
    flags += ["--port", "0", "--router", mesh.processes("router")[0].address]
    secret = (mesh.data / "mesh.secret").read_text()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.odd_instance", oddity, *flags],
        env={**_environment(), "SEEDANCE_MESH_SECRET": secret},
    )
    try:
        wait_until_sync(lambda: name in _command(mesh, "status"), within_s=30)
        assert "phase      running" in _command(mesh, "set", LEAST)
        yield name
    finally:
        process.terminate()
        process.wait()
        wait_until_sync(lambda: name not in _command(mesh, "status"), within_s=30)


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("SEEDANCE_")}


def _command(mesh: LocalMesh, *arguments: str) -> str:
    argv = [sys.executable, "-m", "launcher", "canary", *arguments, "--data", str(mesh.data)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout


class _Clients:
    """Two WebSockets without a subprotocol; one asks for the canary."""

    def __init__(self, canary: ClientConnection, others: ClientConnection) -> None:
        self.canary, self.others = canary, others
        for connection in (canary, others):
            connection.recv()

    def ask(self, *connections: ClientConnection) -> list[set[str]]:
        """A round of requests on these at once; which instances took each one's."""
        body = {"messages": [{"role": "user", "content": script([b"a"], first_ms=FIRST_MS)}]}
        for connection in connections:
            for _ in range(ROUND):
                connection.send(json.dumps(body))
        return [self._heard(connection) for connection in connections]

    def _heard(self, connection: ClientConnection) -> set[str]:
        instances, ended = set(), 0
        while ended < ROUND:
            frame = json.loads(connection.recv(timeout=20))
            assert frame["type"] != "error", frame
            ended += frame["type"] == "done"
            if frame["type"] == "accepted":
                instances.add(frame["instance"])
        return instances


@contextlib.contextmanager
def _clients(mesh: LocalMesh) -> Iterator[_Clients]:
    def opened(query: str) -> ClientConnection:
        return connect(mesh.ws + query, compression=None, proxy=None)

    with opened("?canary=true") as canary, opened("") as others:
        yield _Clients(canary, others)


def test_an_equal_canary_stays(mesh: LocalMesh) -> None:
    """As many answers as a verdict needs, and none is given; who asks for the canary has it."""
    with _canary(mesh, "equal") as name, _clients(mesh) as clients:
        for _ in range(ENOUGH // ROUND):
            canary, others = clients.ask(clients.canary, clients.others)
            assert (canary, name in others) == ({name}, False)
        assert "phase      running" in _command(mesh, "status")


def test_a_canary_with_later_first_tokens_is_rolled_back(mesh: LocalMesh) -> None:
    """The reason says how many took how long; then who asks for it goes to the others."""
    with _canary(mesh, "slow") as name, _clients(mesh) as clients:
        for _ in range(ENOUGH // ROUND):
            clients.ask(clients.others)

        def rolled_back() -> str:
            clients.ask(clients.canary)
            shown = _command(mesh, "status")
            return shown if "rolled_back" in shown else ""

        shown = wait_until_sync(rolled_back, within_s=60)
        assert "reason     first token:" in shown

        def left() -> bool:
            return clients.ask(clients.canary) != [{name}]

        wait_until_sync(left, within_s=10)


def test_a_canary_that_stands_still_is_rolled_back(mesh: LocalMesh) -> None:
    """Nobody needs to ask it anything for that."""
    with _canary(mesh, "stuck"):
        wait_until_sync(lambda: "rolled_back" in _command(mesh, "status"), within_s=120)
        assert "reason     pauses: p99" in _command(mesh, "status")
