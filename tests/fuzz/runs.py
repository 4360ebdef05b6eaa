"""A mesh that is sent nonsense, and how it stands afterwards."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.fuzz.bystanders import Bystanders
from tests.fuzz.http_requests import fuzz_by_bytes, fuzz_by_document
from tests.fuzz.socket_messages import PROTOCOLS, fuzz_sockets
from tests.fuzz.verdict import Verdict
from tests.fuzz.wire_bytes import fuzz_wire
from tests.support.mesh import LocalMesh, local_mesh
from tests.support.waiting import wait_until_sync

__all__ = ["FuzzOptions", "Report", "fuzz"]

# Sessions that fuzzed clients leave behind are swept soon, so that memory can be compared.
RESUME_TTL_S = 1
SETTLED_S = 60.0
WATCHED = ("gateway-0", "inference-0")
# What a shorter run allocates once (pools, caches, compiled patterns) is no leak.
GROWTH_BYTES_MAX = 24 * 1024 * 1024
ROUNDS = 4
# One draws its next input while the mesh answers the other.
SENDERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class FuzzOptions:
    """`folder` is for data and logs; `number` decides all that is sent."""

    folder: Path
    examples: int
    number: int


@dataclass
class Report:
    """Everything sent, everything wrong; resident bytes after each round, when all was quiet again."""

    verdict: Verdict = field(default_factory=Verdict)
    streams: int = 0
    resident: dict[str, list[int]] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        """Requests, messages and connections."""
        return sum(self.verdict.sent.values())


def fuzz(options: FuzzOptions, tell: Callable[[Report], None] = lambda _: None) -> Report:
    """Send `options.examples` in a few rounds, others streaming beside them."""
    report = Report()
    spawn = multiprocessing.get_context("spawn")  # a fork would take the bystanders' locks along
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SEEDANCE_RESUME_TTL_S", str(RESUME_TTL_S))
        with (
            local_mesh(options.folder, "--instances", "1", "--gateways", "1") as mesh,
            ProcessPoolExecutor(SENDERS, mp_context=spawn) as senders,
        ):
            pids = {name: mesh.named(name).pid for name in WATCHED}
            for number in range(ROUNDS):
                _round(mesh, senders, options, number, report)
                _quiet(mesh, report)
                for name in WATCHED:
                    report.resident.setdefault(name, []).append(_resident(pids[name]))
                tell(report)
            for name, pid in pids.items():
                if mesh.named(name).pid != pid:
                    report.verdict.fault(f"{name} died")
    _read_logs(options.folder / "logs", report.verdict)
    _compare(report)
    return report


def _round(
    mesh: LocalMesh, senders: Executor, options: FuzzOptions, number: int, report: Report
) -> None:
    seed = options.number * ROUNDS + number
    with Bystanders(mesh.url) as bystanders:
        parts = _parts(mesh, options.examples // ROUNDS)
        for sent in as_completed([senders.submit(_sent, part, seed) for part in parts]):
            report.verdict.add(sent.result())
    report.streams += bystanders.streams
    for fault in bystanders.faults:
        report.verdict.fault(f"a bystander: {fault}")


def _parts(mesh: LocalMesh, share: int) -> Iterator[Callable[[int, Verdict], None]]:
    """What a round sends, the longest first. Drawing a request from the document takes long."""
    tenth = math.ceil(share / 10)
    yield partial(fuzz_by_document, mesh.url, tenth)
    for protocol in PROTOCOLS:
        yield partial(fuzz_sockets, mesh.ws, protocol, math.ceil(5 * tenth / len(PROTOCOLS)))
    yield partial(fuzz_by_bytes, mesh.url, 3 * tenth)
    yield partial(fuzz_wire, mesh.ws, tenth)


def _sent(part: Callable[[int, Verdict], None], seed: int) -> Verdict:
    verdict = Verdict()
    part(seed, verdict)
    return verdict


def _quiet(mesh: LocalMesh, report: Report) -> None:
    """Wait until nothing of the clients is left: no connection, no session."""

    def left() -> dict[str, float]:
        text = httpx.get(f"{mesh.url}/metrics").text
        gauges = ("seedance_gateway_connections", "seedance_gateway_sessions")
        found = {name: re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for name in gauges}
        return {name: float(match[1]) for name, match in found.items() if match}

    try:
        wait_until_sync(lambda: not any(left().values()), within_s=SETTLED_S)
    except AssertionError:
        report.verdict.fault(f"left behind: {left()}")


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def _read_logs(folder: Path, verdict: Verdict) -> None:
    for log in sorted(folder.glob("*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if "Traceback" in line or re.search(r"\b(ERROR|CRITICAL)\b", line):
                verdict.fault(f"{log.name}: {line}")


def _compare(report: Report) -> None:
    """The first round warms up; what is added after it must not go on for ever."""
    for name, after in report.resident.items():
        if after[-1] - after[0] > GROWTH_BYTES_MAX:
            report.verdict.fault(f"{name} grew by {(after[-1] - after[0]) / 2**20:.0f} MiB")
