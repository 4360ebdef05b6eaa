"""What is billed when a gateway dies before its last commit: never more than was delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.asked_world import TEXT, asked, bills, finish, flaky, flaky_world
from tests.support.session_world import WindowedClient, World, settle

TOKENS = 20
PROVEN, LATE = 5, 4
TAKEN_OVER = 4409


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with flaky_world() as made:
        yield made


async def _asked_whole(world: World) -> WindowedClient:
    """A client with one stream that comes in one piece; its `done` has arrived, nothing is committed."""
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    await client.generate("s", stream=False)
    await world.commit()
    await world.step(TOKENS + 2)
    client.read()
    assert client.ends["s"]["text"].encode() == TEXT
    return client


async def _time_passes(world: World) -> None:
    for _ in range(20):
        world.clock.advance(10)
        await world.gateways[1].registry.sweep()
        await world.commit()
        await world.step()


async def test_nobody_comes_back(world: World) -> None:
    """The sweep bills what the store has as framed; what left after the last commit is the mesh's loss."""
    client = await asked(world, steps=PROVEN)
    await client.ack()
    await world.commit()
    proven = client.tokens["s"]
    await world.step(LATE)
    client.read()
    delivered = client.tokens["s"]
    world.gateways[0].crash()
    await _time_passes(world)
    assert [bill["completion_tokens"] for bill in bills(world)] == [proven]
    assert proven < delivered
    assert world.cluster.running == 0


async def test_the_client_comes_back(world: World) -> None:
    """A resume says what was delivered: the new owner finds those tokens at the instance, and bills all."""
    client = await asked(world, steps=PROVEN)
    await client.ack()
    await world.commit()
    await world.step(LATE)
    client.read()
    world.gateways[0].crash()
    await client.resume(world.gateways[1])
    await finish(world, client)
    assert client.texts["s"] == TEXT
    assert [bill["completion_tokens"] for bill in bills(world)] == [TOKENS]


async def test_a_whole_answer_and_nobody_comes_back(world: World) -> None:
    """The whole text was in one frame that the store never heard of: nothing is proven, nothing billed."""
    await _asked_whole(world)
    world.gateways[0].crash()
    await _time_passes(world)
    assert sum(bill["completion_tokens"] for bill in bills(world)) == 0


async def test_a_whole_answer_and_the_client_comes_back(world: World) -> None:
    """It says that it has the end: the answer is not told again, and billed in full."""
    client = await _asked_whole(world)
    world.gateways[0].crash()
    await client.resume(world.gateways[1])
    await finish(world, client)
    await world.step(3)
    await world.commit()
    assert [bill["completion_tokens"] for bill in bills(world)] == [TOKENS]
    assert client.errors == []


async def test_a_bill_never_goes_before_its_end(world: World) -> None:
    """Who dies on the way to the store has billed nothing of a cut-off stream, which goes on elsewhere."""
    client = await asked(world, steps=PROVEN)
    await client.ack()
    await world.commit()
    await client.send(type="cancel", id="s")
    await world.step(LATE)
    flaky(world).held.clear()
    commit = asyncio.create_task(world.gateways[0].registry.checkpointer.commit())
    await settle()
    world.gateways[0].crash()
    commit.cancel()
    flaky(world).held.set()
    assert world.gateways[0].registry.bills_waiting == 1
    assert bills(world) == []
    await client.resume(world.gateways[1])
    await finish(world, client)
    assert [bill["completion_tokens"] for bill in bills(world)] == [client.tokens["s"]]


async def test_an_owner_that_was_overtaken_bills_nothing(world: World) -> None:
    """CASES 55: what it cut off goes on at the newer owner, which bills all that was delivered."""
    client = await asked(world, steps=PROVEN)
    await client.ack()
    await world.commit()
    first = world.gateways[0].registry
    await first.owners[0].deps.store.claim(client.session, first.owners[0].identity.token_hash)
    await client.send(type="cancel", id="s")
    await world.step(LATE)
    await world.commit()
    assert client.socket.close_code == TAKEN_OVER
    await client.resume(world.gateways[1])
    await finish(world, client)
    assert [bill["completion_tokens"] for bill in bills(world)] == [client.tokens["s"]]
