"""A stream's work at the instances: what it is given, and what it costs."""

from __future__ import annotations

import asyncio

from gateway.session.generation import RECOVERIES_AT_ONCE, RECOVERY_WAIT_S
from seedance.protocol.errors import ErrorCode, SeedanceError
from tests.support.session_world import WindowedClient, World
from tests.support.told_usage import stream_bills

DRAINING = SeedanceError(ErrorCode.UNAVAILABLE, "draining", retry_after_ms=1)


async def test_credit_granted_between_two_instances_is_not_lost() -> None:
    """A stream that everybody refused for a while goes on with the share it has by then."""
    world = World(lambda _: [b"x"] * 60)
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    for i in range(7):
        await client.generate(f"other-{i}")
    for instance in world.cluster.instances.values():
        instance.refuses = DRAINING
    await client.generate("s")
    await world.step(3)
    for i in range(7):
        await client.send(type="cancel", id=f"other-{i}")
    instances = world.cluster.instances.values()
    for _ in range(200):
        # The others are through: the whole window is this stream's share.
        if "other-6" in client.ends:
            for instance in instances:
                instance.refuses = None
        await world.commit()
        await world.step(3)
        client.read()
        # Slower than what lets the window grow.
        world.clock.advance(0.1)
        await client.ack()
        if "s" in client.ends:
            break
        await asyncio.sleep(0.01)
    world.close()
    assert client.texts["s"] == b"x" * 60


async def test_what_no_instance_took_is_not_billed() -> None:
    """As over HTTP: a refusal is no line in anybody's ledger (CASES 88)."""
    world = World(lambda _: [b"x"])
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    await client.generate("s", model="nobody-serves-this")
    await client.generate("t")
    for _ in range(3):
        await world.commit()
        await world.step(3)
        client.read()
    await world.commit()
    world.close()
    assert client.ends["s"]["code"] == "model_not_found"
    assert [bill["stream"] for bill in stream_bills(world.memory.usage)] == ["t"]


async def test_a_wall_clock_that_is_set_back() -> None:
    """CASES 116: nothing ends before it began."""
    world = World(lambda _: [b"x"])
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    await client.generate("s")
    world.clock.advance(-10)
    for _ in range(3):
        await world.commit()
        await world.step(3)
        client.read()
    await world.commit()
    world.close()
    (bill,) = stream_bills(world.memory.usage)
    assert bill["ended_ms"] >= bill["started_ms"]


async def test_refused_openings_are_tried_again_within_the_budget() -> None:
    """A refusal moves on to another instance while the budget lasts; then the client is told."""
    world = World(lambda _: [b"x"])
    for instance in world.cluster.instances.values():
        instance.refuses = DRAINING
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    while world.gateways[0].deps.retries.spend():
        pass
    await client.generate("s")
    await world.commit()
    await world.step(3)
    client.read()
    world.close()
    assert client.ends["s"]["code"] == "unavailable"
    assert client.ends["s"]["retryable"]
    assert len(world.gateways[0].upstream.opened) == 1


async def test_what_was_cancelled_between_two_tries_is_not_tried_again() -> None:
    """Else an instance would take, and hold, what nobody will cancel any more."""
    world = World(lambda _: [b"x"] * 60)
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    for instance in world.cluster.instances.values():
        instance.refuses = DRAINING
    await client.generate("s")
    upstream = world.gateways[0].upstream
    while len(upstream.opened) <= RECOVERIES_AT_ONCE:
        await world.step(1)
        await asyncio.sleep(0)
    await world.step(1)  # the last one, too, is refused
    await client.send(type="cancel", id="s")
    tried = len(upstream.opened)
    await asyncio.sleep(2 * RECOVERY_WAIT_S)
    await world.step(3)
    world.close()
    assert len(upstream.opened) == tried


async def test_who_gives_up_while_a_new_owner_hears_again_hears_the_end() -> None:
    """What the store had not is told once more, credit does not cover it all, and there is no more of it."""
    world = World(lambda _: [b"x"] * 120)
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    await client.generate("s")
    await world.commit()
    for _ in range(100):
        await world.step()
        client.read()
        await client.ack()
    world.gateways[0].crash()
    await client.resume(world.gateways[1])
    await client.send(type="cancel", id="s")
    for _ in range(10):
        await world.step()
        client.read()
    world.close()
    assert client.ends["s"]["finish_reason"] == "cancelled"
