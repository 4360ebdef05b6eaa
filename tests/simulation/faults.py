"""What breaks, when, and for how long: all of it drawn from the seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.simulation.apart import Apart, Part
from tests.simulation.network import End
from tests.simulation.store import Data

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Faults"]


# A trap that nobody has stepped into by then is taken away.
TRAP_S = 3.0


class Faults:
    """Draws faults for a world.

    Each run enables some kinds only (a swarm: rare pairs get runs of their own). In a gentle one what
    makes up for each other does not fail together, and no error at all is allowed.
    """

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.apart = Apart(gentle=dice.random() < 0.7)
        self.store_lost_data = False
        kinds: list[Callable[[], Awaitable[None]]] = [
            *(self.cut_client, self.cut_call, self.part, self.slow_reader, self.freeze),
            *(self.kill_gateway, self.kill_instance, self.kill_router, self.step_clock),
            *(self.drain_gateway, self.drain_instance, self.store_away, self.lose_answer),
            *(self.kill_in_mid_word, self.kill_at_the_store),
        ]
        self._kinds = [kind for kind in kinds if dice.random() < 0.4] or [self.cut_client]
        self._count = dice.choice((1, 3, 6, 12))
        self._gap_s = dice.choice((0.02, 0.1, 0.3, 1.0))

    @property
    def may_lose_bills(self) -> bool:
        """Whether what a dead gateway had given to the store may have been lost with the store's data."""
        return self.store_lost_data or self.apart.may_lose_sessions

    async def run(self) -> None:
        """Break things, one after another or on top of each other."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._count):
                await asyncio.sleep(self.dice.expovariate(1 / self._gap_s))
                tasks.create_task(self.dice.choice(self._kinds)())

    # ------------------------------------------------------------ connections

    async def cut_client(self) -> None:
        """A client's connection breaks at some byte."""
        self._doom(self.world.client_ends())

    async def cut_call(self) -> None:
        """A connection between services breaks at some byte."""
        self._doom(self.world.service_ends())

    def _doom(self, ends: list[End]) -> None:
        if not ends:
            return
        end = self.dice.choice(ends)
        end = self.dice.choice((end, end.peer))
        names = (end.host.name, end.peer.host.name)
        # A gateway's way to an instance is that instance for all that hangs on it.
        with self.apart.broken(
            Part.INSTANCE if Part.INSTANCE in map(self._part_of, names) else None
        ) as may:
            if may:
                self._tell(f"cut {names[0]} to {names[1]}")
                end.doom(self.dice.choice((0, 1, self.dice.randint(2, 300), 2000)))

    async def part(self) -> None:
        """Two processes do not reach each other for a while."""
        one, other = self.dice.sample(self.world.names, 2)
        with self.apart.broken(*{self._part_of(one), self._part_of(other)}) as may:
            if may:
                seconds = self._duration()
                self._tell(f"part {one} and {other} for {seconds:.2f}")
                self.world.network.part(one, other)
                await asyncio.sleep(seconds)
                self.world.network.join(one, other)
                self._tell(f"join {one} and {other}")

    async def slow_reader(self) -> None:
        """A client's machine stops reading for a while."""
        ends = self.world.client_ends()
        if ends:
            end = self.dice.choice(ends)
            self._tell(f"slow {end.host.name}")
            end.reading(False)
            await asyncio.sleep(self._duration())
            end.reading(True)

    # ------------------------------------------------------------ processes

    async def kill_gateway(self) -> None:
        """Kill -9, and a new one at the same address after a while."""
        name = self.dice.choice(self.world.gateway_names)
        with self.apart.broken(Part.GATEWAY) as may:
            if may and self.world.kill(name, silent=self._silent(f"kill {name}")):
                await asyncio.sleep(self.dice.random() * 2)
                self.world.start(name)

    async def kill_in_mid_word(self) -> None:
        """A gateway or an instance is killed while it says something: after any byte of it."""
        process = self.dice.choice((*self.world.gateway_names, *self.world.instance_names))
        ends = [e for e in self.world.network.ends if e.host is self.world.host(process)]
        with self.apart.broken(self._part_of(process)) as may:
            if may and ends:
                self._tell(f"{process} will be killed in mid-word")
                said = asyncio.Event()
                self.dice.choice(ends).doom(self.dice.randint(1, 600), said.set)
                await self._kill_when(said, process)

    async def kill_at_the_store(self) -> None:
        """A gateway is killed when a command of it was carried out, before it hears so."""
        name = self.dice.choice(self.world.gateway_names)
        with self.apart.broken(Part.GATEWAY) as may:
            if may:
                self._tell(f"{name} will be killed at the store")
                done = asyncio.Event()
                self.world.store.traps[name] = done.set
                await self._kill_when(done, name)

    async def _kill_when(self, moment: asyncio.Event, name: str) -> None:
        host = self.world.host(name)
        with suppress(TimeoutError):
            async with asyncio.timeout(TRAP_S):
                await moment.wait()
            if self.world.host(name) is host and self.world.kill(name):
                self._tell(f"{name} is killed")
                await asyncio.sleep(self.dice.random() * 2)
                self.world.start(name)

    async def drain_gateway(self) -> None:
        """SIGTERM, then a new one."""
        name = self.dice.choice(self.world.gateway_names)
        with self.apart.broken(Part.GATEWAY) as may:
            if may:
                self._tell(f"drain {name}")
                if await self.world.drain(name):
                    await asyncio.sleep(self.dice.random())
                    self.world.start(name)

    async def kill_instance(self) -> None:
        """Kill -9, and a new one after a while."""
        name = self.dice.choice(self.world.instance_names)
        with self.apart.broken(Part.INSTANCE) as may:
            if may and self.world.kill(name, silent=self._silent(f"kill {name}")):
                await asyncio.sleep(self.dice.random() * 2)
                self.world.start(name)

    async def drain_instance(self) -> None:
        """SIGTERM, then a new one."""
        name = self.dice.choice(self.world.instance_names)
        with self.apart.broken(Part.INSTANCE) as may:
            if may:
                self._tell(f"drain {name}")
                if await self.world.drain(name):
                    await asyncio.sleep(self.dice.random())
                    self.world.start(name)

    async def kill_router(self) -> None:
        """Kill -9, and a new one after a while."""
        with self.apart.broken(Part.ROUTER) as may:
            if may and self.world.kill("router", silent=self._silent("kill router")):
                await asyncio.sleep(self.dice.random() * 3)
                self.world.start("router")

    async def freeze(self) -> None:
        """SIGSTOP, and SIGCONT after a while: whoever took its work over is not disturbed."""
        name = self.dice.choice(self.world.names)
        with self.apart.broken(self._part_of(name)) as may:
            if may:
                seconds = self._duration()
                self._tell(f"freeze {name} for {seconds:.2f}")
                host = self.world.host(name)
                host.freeze()
                await asyncio.sleep(seconds)
                host.thaw()
                self._tell(f"thaw {name}")

    async def step_clock(self) -> None:
        """A wall clock is set."""
        clock = self.dice.choice(self.world.clocks())
        clock.wall_step_ms += self.dice.randint(-30_000, 30_000)

    # ------------------------------------------------------------ the store

    async def store_away(self) -> None:
        """It is killed and comes back, with what it had, less, or nothing."""
        store = self.world.store
        with self.apart.broken(Part.STORE) as may:
            if not may:
                return
            store.remember()
            await asyncio.sleep(self.dice.random())
            if not store.host.alive:
                return
            data = self.dice.choice(list(Data))
            self._tell(f"store away, back with {data.value}")
            store.stop()
            await asyncio.sleep(self.dice.random() * 3)
            if data is not Data.SAME:
                self.store_lost_data = True
                self.world.watch.store_lost_data()
            store.start(data)
            self._tell("store back")

    async def lose_answer(self) -> None:
        """A command is carried out and its answer is lost."""
        with self.apart.broken(Part.STORE) as may:
            if may:
                self._tell("a store's answer is lost")
                self.world.store.answers_to_lose += 1

    # ------------------------------------------------------------ rules

    def _part_of(self, name: str) -> Part | None:
        if name in self.world.gateway_names:
            return Part.GATEWAY
        if name in self.world.instance_names:
            return Part.INSTANCE
        return {"store": Part.STORE, "router": Part.ROUTER}.get(name)

    def _silent(self, what: str) -> bool:
        """Whether the whole machine goes, so that nobody hears of it."""
        silent = self.dice.random() < 0.3
        self._tell(f"{what}{' silently' if silent else ''}")
        return silent

    def _tell(self, what: str) -> None:
        self.world.watch.tell(f"** {what}")

    def _duration(self) -> float:
        return self.dice.choice((0.05, 0.3, 1.0, 3.0)) if self.dice.random() < 0.9 else 20.0
