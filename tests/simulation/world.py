"""One run: a mesh, its users and its faults, from one seed to one verdict."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import grpc.aio

from tests.simulation.apart import Part
from tests.simulation.checkers import Watch, WatchedLogs
from tests.simulation.faults import Faults
from tests.simulation.loop import Host, HostClock, VirtualLoop
from tests.simulation.network import End, Network
from tests.simulation.rpc_client import Channel
from tests.simulation.services import RESUME_TTL_S, GatewayProcess, InstanceProcess, RouterProcess
from tests.simulation.sockets import dialler
from tests.simulation.store import StoreServer
from tests.simulation.verdict import Ledger, judge
from tests.simulation.workload import User

__all__ = ["Verdict", "World", "simulate"]

# In virtual time every run is over by then.
WARM_UP_S = 1.0
DRAIN_S = 2.0
USERS_END_S = 300.0
# A dead owner's session: `resume_ttl`, its silence, a sweep, its write; then the transcripts.
QUIET_S = RESUME_TTL_S + 30 + 5 + 10
TRANSCRIPTS_S = RESUME_TTL_S + 60 + 5


@dataclass
class Verdict:
    """What was found; `trace` when asked for."""

    seed: int
    breaches: list[str]
    trace: list[str] = field(default_factory=list)


class World:
    """All processes of a run by name; a restarted one replaces its former self."""

    def __init__(self, seed: int, network: Network, watch: Watch) -> None:
        dice = random.Random(seed)
        self.watch = watch
        self.network = network
        self.store = StoreServer(self.network, watch, RESUME_TTL_S)
        self._lease_ms = dice.choice((3_000, 30_000, 30_000))
        self.router = RouterProcess(network, self._lease_ms)
        self.gateway_names = [f"g{n}" for n in range(dice.randint(1, 3))]
        self.instance_names = [f"i{n}" for n in range(dice.randint(2, 3))]
        self._urls = ",".join(f"ws://{name}:80" for name in self.gateway_names)
        self._blocks = dice.choice((60, 200, 2000))
        self._starts = 0
        self.gateways: dict[str, GatewayProcess] = {}
        self.instances: dict[str, InstanceProcess] = {}
        for name in (*self.instance_names, *self.gateway_names):
            self.start(name)
        self.users = [
            User(f"c{n}", f"ws://{dice.choice(self.gateway_names)}:80", watch, dice)
            for n in range(dice.randint(1, 3))
        ]
        self.ledger = Ledger(self.store, watch)
        self.faults = Faults(self, dice)
        watch.forgets = lambda: Part.STORE in self.faults.apart.happened
        self.dice = dice

    # ------------------------------------------------------------ processes

    @property
    def names(self) -> list[str]:
        """Every process."""
        users = [user.name for user in self.users]
        return ["store", "router", *self.gateway_names, *self.instance_names, *users]

    def host(self, name: str) -> Host:
        """The process of that name now."""
        hosts = {"store": self.store.host, "router": self.router.host}
        hosts |= {user.name: user.host for user in self.users}
        hosts |= {n: p.host for n, p in (*self.gateways.items(), *self.instances.items())}
        return hosts[name]

    def clocks(self) -> list[HostClock]:
        """The wall clocks that may be set."""
        return [gateway.clock for gateway in self.gateways.values()]

    def start(self, name: str) -> None:
        """Start a process, perhaps again."""
        if name in self.gateway_names:
            self.gateways[name] = GatewayProcess(
                name, self._urls, self.network, self.store, self.watch
            )
        elif name in self.instance_names:
            self._starts += 1
            self.instances[name] = InstanceProcess(
                name, self._starts, self.network, self.watch, self._blocks
            )
        else:
            self.router = RouterProcess(self.network, self._lease_ms)

    def kill(self, name: str, *, silent: bool = False) -> bool:
        """Kill -9; whether it lived. `silent`: its machine goes with it."""
        host = self.host(name)
        if not host.alive:
            return False
        host.kill()
        self.network.died(host, silent=silent)
        return True

    async def drain(self, name: str) -> bool:
        """SIGTERM, and wait for its end; whether this call did it."""
        process = self.gateways.get(name) or self.instances[name]
        host = process.host
        if not host.alive or host.draining:
            return False
        host.draining = True
        task = host.spawn(process.drain(DRAIN_S))
        while host.alive and not task.done():  # noqa: ASYNC110 - it may be killed meanwhile
            await asyncio.sleep(0.05)
        return self.host(name) is host and self.kill(name)

    # ------------------------------------------------------------ connections

    def client_ends(self) -> list[End]:
        """The clients' ends of their connections."""
        users = {user.host for user in self.users}
        return [end for end in self.network.ends if end.host in users]

    def service_ends(self) -> list[End]:
        """Ends of connections between services."""
        users = {user.host for user in self.users}
        return [e for e in self.network.ends if e.host not in users and e.peer.host not in users]

    # ------------------------------------------------------------ the run

    async def run(self) -> None:
        """Everything from the first request to the last memory of it."""
        await asyncio.sleep(WARM_UP_S)
        for user in self.users:
            user.host.spawn(user.run())
        breaking = asyncio.create_task(self.faults.run())
        work = [asyncio.create_task(self.ledger.run())]
        work += [asyncio.create_task(self._lose(user)) for user in self.users]
        work += [asyncio.create_task(self._stall(user)) for user in self.users if user.stalls]
        try:
            async with asyncio.timeout(USERS_END_S):
                await asyncio.gather(breaking, *(user.over.wait() for user in self.users))
        except TimeoutError:
            self.watch.breach("a stream never ends")
            return
        await asyncio.sleep(WARM_UP_S)
        for user in self.users:
            if user.host.alive and self.dice.random() < 0.5:
                await user.host.spawn(user.leave())
            else:
                self.kill(user.name, silent=self.dice.random() < 0.5)
        await asyncio.sleep(QUIET_S)
        work.clear()
        judge(self)
        await asyncio.sleep(TRANSCRIPTS_S - QUIET_S)
        for name, instance in self.instances.items():
            for left in instance.engine.desk.directory:
                state = "ended" if left.ended else "not ended"
                self.watch.breach(f"{name} remembers {left.opened.generation} for ever, {state}")

    async def _lose(self, user: User) -> None:
        """A user who goes in the middle of it goes for good."""
        if user.goes_s is not None:
            await asyncio.sleep(user.goes_s)
            self.watch.tell(f"{user.name} is gone")
            self.kill(user.name)
            user.over.set()

    async def _stall(self, user: User) -> None:
        """A machine that reads, and then does not, and then does."""
        while not user.over.is_set():
            await asyncio.sleep(self.dice.random())
            ends = [end for end in self.network.ends if end.host is user.host]
            for end in ends:
                end.reading(False)
            await asyncio.sleep(self.dice.random() * 2)
            for end in ends:
                end.reading(True)


@contextmanager
def _nothing_by_chance(seed: int) -> Iterator[None]:
    """Names, tokens and back-offs come from the seed too."""
    dice = random.Random(f"names {seed}")
    state = random.getstate()
    random.seed(seed)

    def urlsafe(size: int = 32) -> str:
        return base64.urlsafe_b64encode(dice.randbytes(size)).rstrip(b"=").decode()

    with (
        mock.patch.object(secrets, "token_urlsafe", urlsafe),
        mock.patch.object(secrets, "token_hex", lambda size=32: dice.randbytes(size).hex()),
        mock.patch.object(secrets, "randbelow", dice.randrange),
    ):
        yield
    random.setstate(state)


@contextmanager
def _simulated_transports(network: Network) -> Iterator[None]:
    with (
        mock.patch.object(
            grpc.aio, "insecure_channel", lambda address, **_: Channel(network, address)
        ),
        mock.patch("seedance.client.link.connect", dialler(network)),
    ):
        yield


@contextmanager
def _watched_errors(watch: Watch) -> Iterator[None]:
    """What a service logs as an error is a breach."""
    handler, root = WatchedLogs(watch), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


async def _play(seed: int, *, traced: bool) -> Watch:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    watch = Watch(trace=[] if traced else None)
    network = Network(seed)
    with _simulated_transports(network):
        with _watched_errors(watch):
            world = World(seed, network, watch)
            await world.run()
        network.shut()
        await loop.unwind()
    return watch


def simulate(seed: int, *, traced: bool = False) -> Verdict:
    """Play one seed."""
    with _nothing_by_chance(seed), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        watch = runner.run(_play(seed, traced=traced))
    return Verdict(seed, watch.breaches, watch.trace or [])
