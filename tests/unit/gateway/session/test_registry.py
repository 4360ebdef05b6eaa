"""Sessions that move, are taken over, run out of time, and are swept up (§4.5–§4.8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.session.owner import SessionOwner
from gateway.store.base import SessionOverError, SessionWrite, StoreUnavailableError
from seedance.protocol.frames import Resume
from seedance.protocol.resume import ResumeFault
from tests.support.asked_world import TEXT, asked, bills, finish, flaky, flaky_world
from tests.support.session_world import WindowedClient, World, settle


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with flaky_world() as made:
        yield made


async def test_a_newer_owner_fences_the_older(world: World) -> None:
    """It closes with 4409 and touches neither store nor instance (§4.6, CASES 55)."""
    client = await asked(world, steps=3)
    old = client.socket
    await client.resume(world.gateways[1])
    await world.step(2)
    await world.commit()
    assert old.close_code == 4409
    assert len(world.gateways[0].registry) == 0
    await finish(world, client)
    assert client.texts["s"] == TEXT
    assert [bill["completion_tokens"] for bill in bills(world)] == [20]


async def test_a_session_that_was_said_to_be_gone_is_gone(world: World) -> None:
    """Its first commit comes after another gateway's 4410: the client asks anew, so it runs for nobody (§4.8)."""
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    await client.generate("s")
    client.cut()
    await client.resume(world.gateways[1])
    assert client.socket.close_code == 4410
    await world.commit()
    await world.step(3)
    await world.commit()
    assert len(world.gateways[0].registry) == 0
    assert bills(world) == []


async def test_a_session_that_is_not_written_yet_is_resumed_where_it_is(world: World) -> None:
    """To its own gateway it is no unknown one, and its first commit comes as ever."""
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    await client.generate("s")
    client.cut()
    await client.resume(world.gateways[0])
    await finish(world, client)
    assert client.texts["s"] == TEXT
    assert [bill["completion_tokens"] for bill in bills(world)] == [20]


async def test_two_resumes_at_once(world: World) -> None:
    """The later one takes over, the text comes once to whoever holds it (CASES 50)."""
    client = await asked(world, steps=3)
    client.cut()
    twin = WindowedClient()
    twin.__dict__.update({**client.__dict__, "texts": {"s": bytearray(client.texts["s"])}})
    await asyncio.gather(client.resume(world.gateways[0]), twin.resume(world.gateways[0]))
    assert sorted([client.connected, twin.connected]) == [False, True]
    winner = client if client.connected else twin
    loser = twin if winner is client else client
    assert loser.socket.close_code == 4409
    await finish(world, winner)
    assert winner.texts["s"] == TEXT


async def test_a_third_resume_waits_for_the_second(world: World) -> None:
    """It comes when the first is through and the second is not: still one after the other (§8)."""
    client = await asked(world, steps=3)
    client.cut()
    registry, finding, most = world.gateways[0].registry, 0, 0
    find = registry._find

    async def counted(resume: Resume, tenant: str) -> tuple[SessionOwner, bool]:
        nonlocal finding, most
        finding += 1
        most = max(most, finding)
        await settle()
        found = await find(resume, tenant)
        finding -= 1
        return found

    registry._find = counted  # type: ignore[method-assign]
    wants = Resume(client.session, client.token, client.last_seq, {})

    async def resume() -> None:
        connection, _ = world.gateways[0].connect()
        await registry.resume(wants, "local", connection, windowed=True)

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(resume())
        tasks.create_task(resume())
        first.add_done_callback(lambda _: tasks.create_task(resume()))
    assert most == 1
    assert not registry._resuming


@pytest.mark.parametrize("change", ["session", "token"])
async def test_a_stranger_is_told_nothing(world: World, change: str) -> None:
    """Unknown session and wrong token look alike: `session_expired`, 4410; the owner keeps on."""
    client = await asked(world, steps=3)
    for index in (0, 1):
        thief = WindowedClient()
        thief.session, thief.token = client.session, client.token
        setattr(thief, change, "x" * 22)
        await thief.resume(world.gateways[index])
        thief.read()
        assert [e["code"] for e in thief.errors] == ["session_expired"]
        assert thief.socket.close_code == 4410
    await finish(world, client)
    assert client.texts["s"] == TEXT


async def test_with_the_store_away_a_resume_elsewhere_is_unavailable(world: World) -> None:
    """Not `session_expired`: nobody knows that it is gone. Here it is in memory, and works (§4.8)."""
    client = await asked(world, steps=3)
    client.cut()
    flaky(world).away = True
    await client.resume(world.gateways[1])
    client.read()
    assert client.errors.pop()["code"] == "unavailable"
    assert client.socket.close_code == 1013
    client.cut()
    await client.resume(world.gateways[0])
    flaky(world).away = False
    await finish(world, client)
    assert client.texts["s"] == TEXT


async def test_a_dead_gateways_session_is_swept_and_billed(world: World) -> None:
    """When its time is up, another gateway cancels its streams and writes what they cost (§4.7)."""
    client = await asked(world, steps=5)
    await client.ack()
    await world.commit()
    framed = client.tokens["s"]
    world.gateways[0].crash()
    assert world.cluster.running == 1
    for _ in range(20):
        world.clock.advance(10)
        await world.gateways[1].registry.sweep()
        await world.commit()
        await world.step()
    assert [bill["completion_tokens"] for bill in bills(world)] == [framed]
    assert bills(world)[0]["prompt_tokens"] == 7
    assert world.cluster.running == 0
    await client.resume(world.gateways[1])
    client.read()
    assert client.socket.close_code == 4410


@pytest.mark.parametrize("settling", [False, True])
async def test_a_session_that_ended_elsewhere_is_expired(
    world: World, monkeypatch: pytest.MonkeyPatch, settling: bool
) -> None:
    """Who still has it in memory says so as well, instead of going on until its next commit (§4.8)."""
    client = await asked(world, steps=3)
    client.cut()
    await world.memory.commit([SessionWrite(client.session, 2, closed=True)], "another")
    if settling:
        monkeypatch.setattr(world.store, "claim", _unbelieved, raising=False)
    await client.resume(world.gateways[0])
    client.read()
    assert client.socket.close_code == 4410
    assert [error["code"] for error in client.errors] == ["session_expired"]
    client.cut()
    assert len(world.gateways[0].registry) == 0


async def _unbelieved(*_: object, **__: object) -> None:
    raise StoreUnavailableError


@pytest.mark.parametrize("settling", [False, True])
async def test_memory_from_before_another_owner_wins_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, settling: bool
) -> None:
    """A, B, and A again before it learns of B, with its claim's answer lost, or the store in doubt (§4.6)."""
    first, second = world.gateways
    client = await asked(world)
    await finish(world, client)  # or the instance would tell A of B
    client.cut()
    await client.resume(second)
    await client.generate("t")
    await second.registry.checkpointer.commit()
    await world.step(3)
    client.read()
    client.cut()

    async def lost(*args: Any, **more: Any) -> None:
        await world.memory.claim(*args, **more)
        raise StoreUnavailableError

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "claim", _unbelieved if settling else lost, raising=False)
        assert len(first.registry) == 1, "it does not know yet"
        await client.resume(first)
        client.read()
        assert client.errors.pop()["code"] == "unavailable"
        assert client.socket.close_code == 1013
    client.cut()
    await client.resume(first)
    await finish(world, client, "t")
    assert client.texts == {"s": TEXT, "t": TEXT}
    assert [bill["completion_tokens"] for bill in bills(world)] == [20, 20]


async def test_a_session_without_connection_ends_in_time(world: World) -> None:
    """Its owner cancels and bills, and forgets it everywhere (§4.7)."""
    client = await asked(world, steps=3)
    client.cut()
    world.clock.advance(121)
    owner = world.gateways[0].registry.owners[0]
    owner.on_time(world.clock.monotonic())
    await world.step(3)
    await world.commit()
    assert len(world.gateways[0].registry) == 0
    assert [bill["finish_reason"] for bill in bills(world)] == ["cancelled"]
    assert world.cluster.running == 0
    with pytest.raises(SessionOverError):
        await world.memory.raise_epoch(client.session, 1, "")


async def test_an_idle_session_is_kept_alive(world: World) -> None:
    """A connected session never expires in the store, however long nothing happens (CASES 60)."""
    client = await asked(world)
    await finish(world, client)
    for _ in range(40):
        world.clock.advance(10)
        await world.commit()
    assert await world.gateways[1].registry.sweep() == 0
    me = world.gateways[0].deps.usage.gateway
    assert await world.memory.raise_epoch(client.session, 1, me) is not None


async def test_a_simple_client_leaves_nothing(world: World) -> None:
    """Its stream ends with its connection, within two engine steps, and is billed (CASES 26, 31)."""
    connection, socket = world.gateways[0].connect(windowed=False)
    await connection.on_message(json.dumps({"prompt": "?"}))
    await world.commit()
    await world.step(4)
    assert '"token"' in socket.sent[-1]
    before = world.cluster.computed
    connection.gone()
    await world.step(2)
    await world.commit()
    await settle()
    await world.commit()
    assert world.cluster.computed - before <= 2
    assert world.cluster.running == 0
    assert len(world.gateways[0].registry) == 0
    assert [bill["finish_reason"] for bill in bills(world)] == ["cancelled"]


async def test_a_drained_gateway_hands_its_sessions_over(world: World) -> None:
    """Everything is stored, and the instances are left running for the next owner."""
    client = await asked(world, steps=4)
    client.cut()
    await world.gateways[0].registry.close()
    assert world.cluster.running == 1
    await client.resume(world.gateways[1])
    await finish(world, client)
    assert client.texts["s"] == TEXT
    assert world.cluster.computed == 20


async def test_what_was_settled_without_its_client_is_only_told(world: World) -> None:
    """A stream cancelled with its connection is billed; a new owner adds no text to it, nor tokens."""
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    await client.generate("s", on_disconnect="cancel")
    await world.commit()
    await world.step(5)
    # The instance is ahead of what the gateway has put into frames when the connection goes.
    client.socket.full = True
    client.connection._on_writable(False)
    await world.step(3)
    client.read()
    client.cut()
    await world.step(2)
    await world.commit()
    (bill,) = bills(world)
    world.gateways[0].crash()
    heard = bytes(client.texts["s"])
    await client.resume(world.gateways[1])
    await finish(world, client)
    assert client.ends["s"]["finish_reason"] == "cancelled"
    assert client.texts["s"] == heard
    assert client.ends["s"]["usage"]["prompt_tokens"] == bill["prompt_tokens"] > 0
    assert client.ends["s"]["usage"]["completion_tokens"] == bill["completion_tokens"] > 0
    assert bills(world) == [bill]


async def test_another_tenants_thief_does_not_take_the_session_over(world: World) -> None:
    """Even with the token, and at a gateway that knows the session from the store alone: no epoch is raised."""
    client = await asked(world, steps=3)
    await world.commit()
    wants = Resume(client.session, client.token, client.last_seq, {})
    connection, _ = world.gateways[1].connect()
    with pytest.raises(ResumeFault):
        await world.gateways[1].registry.resume(wants, "evil", connection, windowed=True)
    assert world.memory._sessions[client.session].epoch == 1
    assert client.connected


async def test_an_epoch_that_was_given_twice_has_one_owner(world: World) -> None:
    """CASES 50: one by the store, one from memory while it was away; the second asks its client to come again."""
    client = await asked(world, steps=3)
    client.cut()
    await client.resume(world.gateways[1])
    client.read()
    client.cut()
    client.epoch -= 1  # it will hear the same one again (§4.6)
    flaky(world).away = True
    await client.resume(world.gateways[0])
    client.read()
    assert client.connected
    flaky(world).away = False
    await world.commit()
    assert client.socket.close_code == 1013
    client.cut()
    await client.resume(world.gateways[0])
    await finish(world, client)
    assert client.texts["s"] == TEXT
    assert [bill["completion_tokens"] for bill in bills(world)] == [client.tokens["s"]]
