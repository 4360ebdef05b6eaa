"""What breaks, when, and for how long: all of it drawn from the seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tests.simulation.store import Data

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Faults"]

SETTLE_S = 7.0


class Faults:
    """Draws faults for a world.

    Each run enables some kinds only (a swarm: rare pairs get runs of their own). A gentle run keeps
    the loss of a gateway apart from the store's absence, which together may lose a session (the
    design, §3): in it no error at all is allowed.
    """

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.gentle = dice.random() < 0.7
        # When the store was last away, and when a gateway was last lost.
        self.store_lost_at = self.gateway_lost_at = float("-inf")
        self.store_lost_data = False
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.cut_client,
            self.cut_call,
            self.kill_gateway,
            self.kill_instance,
            self.kill_router,
            self.store_away,
            self.store_answer_lost,
            self.part,
            self.freeze,
            self.slow_reader,
            self.step_clock,
            self.drain_gateway,
            self.drain_instance,
        ]
        self.kinds = [kind for kind in kinds if dice.random() < 0.4] or [self.cut_client]
        self.count = dice.choice((0, 1, 2, 4, 8))
        self.gap_s = dice.choice((0.02, 0.1, 0.5, 2.0))

    async def run(self) -> None:
        """Break things, one after another or on top of each other."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.count):
                await asyncio.sleep(self.dice.expovariate(1 / self.gap_s))
                kind = self.dice.choice(self.kinds)
                tasks.create_task(kind())

    # ------------------------------------------------------------ connections

    async def cut_client(self) -> None:
        """A client's connection breaks at some byte."""
        ends = self.world.client_ends()
        if ends:
            end = self.dice.choice(ends)
            end = self.dice.choice((end, end.peer))
            self.tell(f"cut {end.host.name} to {end.peer.host.name}")
            end.doom(self.dice.choice((0, 1, self.dice.randint(2, 300), 2000)))

    async def cut_call(self) -> None:
        """A connection between services breaks at some byte."""
        ends = self.world.service_ends()
        if ends:
            end = self.dice.choice(ends)
            self.tell(f"cut {end.host.name} to {end.peer.host.name}")
            end.doom(self.dice.choice((0, 1, self.dice.randint(2, 300), 2000)))

    async def part(self) -> None:
        """Two processes do not reach each other for a while."""
        one, other = self.dice.sample(self.world.names, 2)
        seconds = self._duration()
        if "store" in (one, other) and not self._store_may_go():
            return
        self.tell(f"part {one} and {other} for {seconds:.2f}")
        self.world.network.part(one, other)
        await asyncio.sleep(seconds)
        self.world.network.join(one, other)
        self.tell(f"join {one} and {other}")
        if "store" in (one, other):
            self.store_lost_at = self.now

    async def slow_reader(self) -> None:
        """A client's machine stops reading for a while."""
        ends = self.world.client_ends()
        if ends:
            end = self.dice.choice(ends)
            self.tell(f"slow {end.host.name}")
            end.reading(False)
            await asyncio.sleep(self._duration())
            end.reading(True)

    # ------------------------------------------------------------ processes

    async def kill_gateway(self) -> None:
        """Kill -9, and a new one at the same address after a while."""
        name = self.dice.choice(self.world.gateway_names)
        if not self._gateway_may_go():
            return
        self.tell(f"kill {name}")
        if self.world.kill_gateway(name, silent=self.dice.random() < 0.3):
            await asyncio.sleep(self.dice.random() * 2)
            self.world.start_gateway(name)

    async def drain_gateway(self) -> None:
        """SIGTERM, then a new one."""
        name = self.dice.choice(self.world.gateway_names)
        if not self._gateway_may_go():
            return
        self.tell(f"drain {name}")
        if await self.world.drain_gateway(name):
            self.gateway_lost_at = self.now
            await asyncio.sleep(self.dice.random())
            self.world.start_gateway(name)

    async def kill_instance(self) -> None:
        """Kill -9, and a new one after a while."""
        name = self.dice.choice(self.world.instance_names)
        self.tell(f"kill {name}")
        if self.world.kill_instance(name, silent=self.dice.random() < 0.3):
            await asyncio.sleep(self.dice.random() * 2)
            self.world.start_instance(name)

    async def drain_instance(self) -> None:
        """SIGTERM, then a new one."""
        name = self.dice.choice(self.world.instance_names)
        self.tell(f"drain {name}")
        if await self.world.drain_instance(name):
            await asyncio.sleep(self.dice.random())
            self.world.start_instance(name)

    async def kill_router(self) -> None:
        """Kill -9, and a new one after a while."""
        self.tell("kill router")
        if self.world.kill_router():
            await asyncio.sleep(self.dice.random() * 3)
            self.world.start_router()

    async def freeze(self) -> None:
        """SIGSTOP, and SIGCONT after a while: whoever took its work over is not disturbed."""
        name = self.dice.choice(self.world.names)
        seconds = self._duration()
        if name == "store" and not self._store_may_go():
            return
        if name in self.world.gateway_names and not self._gateway_may_go():
            return
        self.tell(f"freeze {name} for {seconds:.2f}")
        host = self.world.host(name)
        host.freeze()
        await asyncio.sleep(seconds)
        host.thaw()
        self.tell(f"thaw {name}")
        if name == "store":
            self.store_lost_at = self.now

    async def step_clock(self) -> None:
        """A wall clock is set."""
        clock = self.dice.choice(self.world.clocks())
        clock.wall_step_ms += self.dice.randint(-30_000, 30_000)

    # ------------------------------------------------------------ the store

    async def store_away(self) -> None:
        """It is killed and comes back, with what it had, less, or nothing."""
        if not self._store_may_go() or not self.world.store.host.alive:
            return
        store = self.world.store
        data = self.dice.choice(list(Data))
        store.remember()
        await asyncio.sleep(self.dice.random())
        if not store.host.alive:
            return
        self.tell(f"store away, back with {data.value}")
        store.stop()
        self.store_lost_at = self.now
        await asyncio.sleep(self.dice.random() * 3)
        if data is not Data.SAME:
            self.store_lost_data = True
            self.world.watch.store_lost_data()
        store.start(data)
        self.store_lost_at = self.now
        self.tell("store back")

    async def store_answer_lost(self) -> None:
        """A command is carried out and its answer is lost."""
        if self._store_may_go():
            self.tell("a store's answer is lost")
            self.world.store.answers_to_lose += 1
            self.store_lost_at = self.now

    # ------------------------------------------------------------ rules

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def tell(self, what: str) -> None:
        self.world.watch.tell(f"** {what}")

    def _duration(self) -> float:
        return self.dice.choice((0.05, 0.3, 1.0, 3.0)) if self.dice.random() < 0.9 else 20.0

    def _store_may_go(self) -> bool:
        if self.gentle and self.now < self.gateway_lost_at + SETTLE_S:
            return False
        self.store_lost_at = float("inf") if self.gentle else self.now
        return True

    def _gateway_may_go(self) -> bool:
        if self.gentle and self.now < self.store_lost_at + SETTLE_S:
            return False
        self.gateway_lost_at = self.now
        return True
