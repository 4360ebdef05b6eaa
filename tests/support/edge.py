"""nginx and HAProxy as `deploy/edge` has them, started on free ports in front of a test's gateways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.ports import free_port
from tests.support.certificates import Authority, Pair
from tests.support.waiting import wait_until

__all__ = [
    "CONFIGURATIONS",
    "EDGES",
    "Edge",
    "EdgePorts",
    "free_edge_ports",
    "program_of",
    "running_edge",
    "seconds_of",
]

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "deploy" / "edge"
EDGES = ("nginx", "haproxy")
# Debian keeps servers where only root looks for programs.
SBIN = "/usr/sbin:/usr/local/sbin:/sbin"


def program_of(edge: str) -> str | None:
    """Where the program is, None where it is not installed."""
    return shutil.which(edge) or shutil.which(edge, path=SBIN)


@dataclass(frozen=True)
class EdgePorts:
    """Where an edge listens."""

    https: int
    grpc: int


@dataclass
class Edge:
    """A running edge. `said` is the file with everything it wrote."""

    ports: EdgePorts
    authority: Authority
    tls: ssl.SSLContext
    said: Path
    admin: str

    @property
    def url(self) -> str:
        return f"wss://127.0.0.1:{self.ports.https}"

    @property
    def http(self) -> str:
        return f"https://127.0.0.1:{self.ports.https}"


def _nginx(
    folder: Path, ports: EdgePorts, pair: Pair, gateways: Sequence[str], instance: str
) -> None:
    """Write the configuration with this test's ports; each of the file's own is there to be replaced."""
    text = (CONFIGURATIONS / "nginx.conf").read_text()
    for given, ours in (
        ("listen 443 ", f"listen 127.0.0.1:{ports.https} "),
        ("listen 127.0.0.1:8443 ", f"listen 127.0.0.1:{ports.grpc} "),
        ("server 127.0.0.1:8080 ", f"server {gateways[0]} "),
        ("server 127.0.0.1:8081 ", f"server {gateways[1]} "),
        ("server 127.0.0.1:50051;", f"server {instance};"),
        ("/etc/nginx/seedance.pem", pair.certificate),
        ("/etc/nginx/seedance.key", pair.key),
    ):
        assert given in text, given
        text = text.replace(given, ours)
    (folder / "nginx.conf").write_text(text)


def _maps(folder: Path) -> Path:
    """The repository's maps, but for those that the test has put into its folder."""
    for name in ("regions.map", "pools.map"):
        if not (folder / name).exists():
            shutil.copy(CONFIGURATIONS / name, folder)
    return folder


def _command(
    edge: str,
    folder: Path,
    ports: EdgePorts,
    pair: Pair,
    gateways: Sequence[str],
    agents: Sequence[int],
    instance: str,
    own: str,
) -> tuple[list[str], dict[str, str]]:
    program = program_of(edge)
    assert program is not None
    if edge == "nginx":
        _nginx(folder, ports, pair, gateways, instance)
        return [program, "-p", str(folder), "-c", "nginx.conf", "-g", "daemon off;"], {}
    both = folder / "both.pem"
    both.write_text(Path(pair.certificate).read_text() + Path(pair.key).read_text())
    variables = {
        "EDGE_HTTPS": f"127.0.0.1:{ports.https}",
        "EDGE_GRPC": f"127.0.0.1:{ports.grpc}",
        "EDGE_CERT": str(both),
        "EDGE_MAPS": str(_maps(folder)),
        "INSTANCE_0": instance,
    }
    for number, (gateway, agent) in enumerate(zip(gateways, agents, strict=True)):
        variables |= {f"GATEWAY_{number}": gateway, f"AGENT_{number}": str(agent)}
    # What an operator adds in a file of his own: here also a socket to ask HAProxy for its weights.
    admin = folder / "admin.cfg"
    admin.write_text(f"global\n    stats socket {folder}/admin.sock level admin\n{own}")
    files = ["-f", str(CONFIGURATIONS / "haproxy.cfg"), "-f", str(admin)]
    return [program, "-db", *files], variables


def _open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.asynccontextmanager
async def running_edge(
    edge: str,
    folder: Path,
    ports: EdgePorts,
    gateways: Sequence[str],
    agents: Sequence[int] = (1, 1),
    instance: str = "127.0.0.1:1",
    own: str = "",
) -> AsyncIterator[Edge]:
    """The program with the repository's configuration, ended when the block is left.

    `own` is appended to HAProxy's; maps that lie in `folder` stand for the repository's.
    """
    authority = Authority(folder)
    pair = authority.issue("edge")
    argv, variables = _command(edge, folder, ports, pair, gateways, agents, instance, own)
    said = folder / "said.log"
    with said.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=output, stderr=output, env={**os.environ, **variables}
        )
    try:
        await wait_until(lambda: _open(ports.https) or process.returncode is not None, 10)
        assert process.returncode is None, said.read_text()
        tls = ssl.create_default_context(cafile=authority.file)
        yield Edge(ports, authority, tls, said, f"{folder}/admin.sock")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def free_edge_ports() -> EdgePorts:
    """Two that nobody uses."""
    first = free_port()
    return EdgePorts(first, free_port(taken=[first]))


def seconds_of(text: str, name: str) -> list[int]:
    """Every value in seconds that a configuration gives to `name`."""
    return [int(value) for value in re.findall(rf"\b{name}\s+(\d+)s", text)]
