"""Run after run on one living mesh: load, one fault, and the verdict on every stream in flight."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.bench.mesh import RunningMesh, running_mesh, with_model
from launcher.blueprint import UpOptions
from launcher.ports import free_port
from tests.chaos.faults import Saboteur
from tests.chaos.plan import Fault, plan
from tests.chaos.relay import running_relay
from tests.chaos.traffic import Outcome, Traffic
from tests.chaos.verdict import Ledger, differs, misbilled
from tests.chaos.wall_clock import WallClocks

__all__ = ["ChaosOptions", "Report", "chaos"]

GATEWAYS, INSTANCES = 2, 2
BILLED_WITHIN_S = 30.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What is asked of a whole chaos."""

    data: Path
    runs: int
    seed: int
    kinds: Sequence[str]
    engine: str = "script"
    clients: int = 6


@dataclass(slots=True)
class Report:
    """What came of it. A failure is a line that says seed, fault, stream and what differs."""

    runs: int = 0
    streams: int = 0
    characters: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class _Arena:
    """A mesh under load, and who breaks it."""

    def __init__(
        self, options: ChaosOptions, mesh: RunningMesh, saboteur: Saboteur, traffic: Traffic
    ) -> None:
        self._options = options
        self._mesh = mesh
        self._saboteur = saboteur
        self._traffic = traffic
        self._calm: dict[str, Outcome] = {}
        self._ledger = Ledger(mesh.data / "ledger.db")

    async def learn(self, report: Report) -> None:
        """See what every request says when nothing goes wrong."""
        for outcome in await self._traffic.calm():
            self._calm[outcome.request] = outcome
            if outcome.error:
                report.failures.append(f"undisturbed: {outcome.request}: {outcome.error}")

    async def run(self, fault: Fault, report: Report) -> None:
        """One fault, while streams run; all of them end, and are judged."""
        async with asyncio.TaskGroup() as both:
            asked = both.create_task(self._traffic.wave())
            both.create_task(self._saboteur.strike(fault))
        outcomes = asked.result()
        wrong = {o.stream: said for o in outcomes if (said := differs(o, self._calm[o.request]))}
        for stream, said in (await self._misbilled(outcomes)).items():
            wrong[stream] = f"{wrong[stream]}; {said}" if stream in wrong else said
        names = {outcome.stream: outcome.request for outcome in outcomes}
        report.failures += [
            f"seed {self._options.seed}, {fault}: stream {stream} ({names[stream]}): {said}"
            for stream, said in wrong.items()
        ]
        report.runs += 1
        report.streams += len(outcomes)
        report.characters += sum(len(outcome.text) for outcome in outcomes)
        report.by_kind[fault.kind] = report.by_kind.get(fault.kind, 0) + 1
        await self._mesh.serving()
        await self._traffic.between()

    async def _misbilled(self, outcomes: Sequence[Outcome]) -> dict[str, str]:
        names = [outcome.stream for outcome in outcomes]
        deadline = asyncio.get_running_loop().time() + BILLED_WITHIN_S
        while wrong := misbilled(outcomes, self._ledger.bills(names)):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(POLL_S)
        return wrong

    def close(self) -> None:
        """Let the ledger go."""
        self._ledger.close()


@contextlib.asynccontextmanager
async def _arena(options: ChaosOptions) -> AsyncIterator[_Arena]:
    rng = random.Random(f"{options.seed}/traffic")
    clocks = WallClocks(options.data / "clocks") if "clock" in options.kinds else None
    async with contextlib.AsyncExitStack() as stack:
        relays = [
            await stack.enter_async_context(running_relay(random.Random(f"{options.seed}/{i}")))
            for i in range(GATEWAYS)
        ]
        public = ",".join(f"ws://{relay.address}" for relay in relays)
        up = UpOptions(
            data=options.data,
            port=free_port(),
            gateways=GATEWAYS,
            instances=INSTANCES,
            engine=options.engine,
            threads=1,
            # The later flag counts: clients are told the relays' addresses.
            gateway_flags=("--gateways", public),
            log_level="info",
        )
        environment = clocks.environment if clocks else {}
        mesh = await stack.enter_async_context(running_mesh(with_model(up), environment))
        for relay, name in zip(relays, mesh.names("gateway"), strict=True):
            relay.target = mesh.specs[name].address
        traffic = Traffic(f"ws://{relays[0].address}", options.engine, options.clients, rng)
        stack.push_async_callback(traffic.close)
        arena = _Arena(options, mesh, Saboteur(mesh, relays, clocks), traffic)
        stack.callback(arena.close)
        yield arena


async def chaos(
    options: ChaosOptions, told: Callable[[Report], None] = lambda _report: None
) -> Report:
    """Break the mesh `runs` times. `told` hears how far it is after every run."""
    report = Report()
    async with _arena(options) as arena:
        await arena.learn(report)
        for fault in plan(options.seed, options.runs, options.kinds, _names()):
            await arena.run(fault, report)
            told(report)
    return report


def _names() -> list[str]:
    gateways = [f"gateway-{i}" for i in range(GATEWAYS)]
    instances = [f"inference-{i}" for i in range(INSTANCES)]
    return ["store-0", "router-0", "metering-0", *instances, *gateways]
