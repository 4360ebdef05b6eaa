"""A world in which one client has asked for one stream `s` of twenty words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.session.presence import STEADY_ANSWERS, STEADY_S
from tests.support.flaky_store import FlakyStore
from tests.support.session_world import WindowedClient, World
from tests.support.told_usage import stream_bills

__all__ = ["TEXT", "asked", "bills", "finish", "flaky", "flaky_world", "steadied"]

SCRIPT = [f"{n} ".encode() for n in range(20)]
TEXT = b"".join(SCRIPT)


@asynccontextmanager
async def flaky_world() -> AsyncIterator[World]:
    """Two gateways on a store that can be away."""
    made = World(lambda _: SCRIPT)
    made.store = FlakyStore(made.memory)  # type: ignore[assignment]
    made.gateways = [made.gateway(), made.gateway()]
    yield made
    made.close()


async def asked(world: World, *, steps: int = 0, commit: bool = True) -> WindowedClient:
    """A client with one stream `s`."""
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    await client.generate("s")
    if commit:
        await world.commit()
    await world.step(steps)
    client.read()
    return client


async def finish(world: World, client: WindowedClient, stream: str = "s") -> None:
    for _ in range(100):
        await world.step()
        await world.commit()
        client.read()
        await client.ack()
        if stream in client.ends:
            break
        await asyncio.sleep(0.005)
    await world.commit()
    await world.commit()


async def steadied(world: World) -> None:
    """Commits until a store that is back is relied on again."""
    for _ in range(STEADY_ANSWERS + 2):
        await world.commit()
        world.clock.advance(STEADY_S / STEADY_ANSWERS)


def bills(world: World) -> list[dict[str, Any]]:
    return stream_bills(world.memory.usage)


def flaky(world: World) -> FlakyStore:
    assert isinstance(world.store, FlakyStore)
    return world.store
