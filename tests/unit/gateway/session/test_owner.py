"""A session's owner: what it carries out, what it writes down, and what it survives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.session.generation import RECOVERIES_MAX
from gateway.session.owner import SOON_S
from gateway.session.presence import STEADY_ANSWERS, STEADY_S, StoreState
from gateway.store.memory import MemoryStore
from mesh.telemetry.metrics import render
from seedance.protocol.errors import ErrorCode, SeedanceError
from tests.support.asked_world import TEXT, asked, bills, finish, flaky, flaky_world, steadied
from tests.support.session_world import WindowedClient, World
from tests.support.waiting import wait_until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with flaky_world() as made:
        yield made


async def test_accepted_leaves_after_its_commit(world: World) -> None:
    """The engine works meanwhile; the client hears when the request is safe (§4.4)."""
    client = await asked(world, steps=3, commit=False)
    assert client.accepted == set()
    assert world.cluster.computed > 0
    await world.commit()
    client.read()
    assert client.accepted == {"s"}
    assert client.texts["s"]


async def test_the_bill_names_who_and_what(world: World) -> None:
    """One event per stream, by its identity, with the tokens that were framed."""
    client = await asked(world)
    await finish(world, client)
    [bill] = bills(world)
    assert bill["id"] == f"{client.session}/s/stream_finished"
    assert (bill["tenant"], bill["model"], bill["instance"]) == ("local", "fake", "i-0")
    assert (bill["prompt_tokens"], bill["cached_tokens"], bill["completion_tokens"]) == (7, 2, 20)
    assert bill["finish_reason"] == "stop"
    assert bill["ended_ms"] >= bill["started_ms"]
    assert bill["traceparent"].startswith("00-")


async def test_a_forgotten_id_is_billed_again(world: World) -> None:
    """Also by a gateway that took the session over: the store knows that the id had been used (§3)."""
    client = await asked(world)
    await finish(world, client)
    streams = world.gateways[0].registry.owners[0].machine.streams
    streams.ended.clear()
    streams.ended.update({f"other-{n}": "" for n in range(1024)})
    del client.ends["s"], client.texts["s"]
    world.clock.advance(1)
    await client.generate("s")
    await world.commit()
    await world.step(3)
    client.read()
    client.cut()
    await client.resume(world.gateways[1])
    await finish(world, client)
    assert client.texts["s"] == TEXT
    assert len({bill["id"] for bill in bills(world)}) == 2


async def test_requests_are_counted_once(world: World) -> None:
    """Per stream its outcome and its time to first text; per refused frame its code (CASES 88)."""
    client = await asked(world)
    await client.send(type="what")
    await finish(world, client)
    metrics = render(world.gateways[0].deps.metrics.registry).decode()
    assert 'seedance_gateway_requests_total{outcome="stop",way="websocket"} 1.0' in metrics
    assert "seedance_gateway_ttft_seconds_count 1.0" in metrics
    assert 'seedance_gateway_rejected_total{code="bad_request"} 1.0' in metrics


async def test_an_instance_may_forget_what_is_stored(world: World) -> None:
    """`release` follows the commit of a stream's end, and never precedes it (§7)."""
    client = await asked(world, steps=30)
    await client.ack()
    await world.step(5)
    instance = world.cluster.instances["i-0"]
    assert instance.released == []
    await world.commit()
    assert instance.released == [f"{client.session}/s"]


async def test_no_token_goes_to_the_store_one_by_one(world: World) -> None:
    """Between two commits everything gathers (§4.4)."""
    await asked(world)
    before = flaky(world).commits
    await world.step(10)
    await world.commit()
    assert flaky(world).commits == before + 1


async def test_who_is_asked_soon_anyway_computes_no_deadline(world: World) -> None:
    """An acknowledgement leaves a near deadline alone, and brings a far one forward."""
    client = await asked(world, steps=3)
    [owner] = world.gateways[0].registry.owners
    owner.armed_at = soon = world.clock.monotonic() + SOON_S
    await client.ack()
    assert owner.armed_at == soon
    owner.armed_at = float("inf")
    await client.ack()
    assert owner.armed_at < float("inf")


async def test_a_dead_instance_costs_nothing_twice(world: World) -> None:
    """The stream goes on elsewhere with its tokens as forced prefix and the same seed (CASES 66)."""
    client = await asked(world, steps=8)
    world.cluster.kill("i-0")
    await finish(world, client)
    assert client.texts["s"] == TEXT
    assert [bill["completion_tokens"] for bill in bills(world)] == [20]
    first, second = world.gateways[0].upstream.opened
    assert len(second.forced_prefix) > 0
    assert first.request == second.request
    assert second.request.sampling.seed is not None


async def test_a_cut_call_is_attached_to_again(world: World) -> None:
    """The instance lives: nothing is computed twice."""
    client = await asked(world, steps=5)
    world.cluster.cut("i-0")
    await finish(world, client)
    assert client.texts["s"] == TEXT
    assert len(world.gateways[0].upstream.opened) == 1
    assert world.cluster.computed == 20


async def test_without_any_instance_a_stream_ends_honestly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many tries it is `unavailable`, retryable, billed for what was framed (CASES 67)."""
    monkeypatch.setattr("gateway.session.generation.RECOVERY_WAIT_S", 0.0)
    client = await asked(world, steps=5)
    world.cluster.kill("i-0")
    world.cluster.kill("i-1")
    await finish(world, client)
    end = client.ends["s"]
    assert (end["code"], end["retryable"]) == ("unavailable", True)
    assert end["usage"]["completion_tokens"] == client.tokens["s"]
    assert len(world.gateways[0].upstream.attached) <= RECOVERIES_MAX


async def test_an_instance_that_drains_is_passed_over(world: World) -> None:
    """A refused `open` goes to the next one: nothing has been framed yet."""
    world.cluster.instances["i-0"].refuses = SeedanceError(ErrorCode.UNAVAILABLE, "draining")
    client = await asked(world)
    await finish(world, client)
    assert client.texts["s"] == TEXT
    assert bills(world)[0]["instance"] == "i-1"


async def test_a_refused_request_is_not_carried_around(world: World) -> None:
    """What is wrong with the request is wrong everywhere (CASES 18)."""
    refusal = SeedanceError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "9 > 8")
    world.cluster.instances["i-0"].refuses = refusal
    client = await asked(world)
    await finish(world, client)
    assert client.ends["s"]["code"] == "context_length_exceeded"
    assert len(world.gateways[0].upstream.opened) == 1


async def test_an_unknown_model_is_refused(world: World) -> None:
    """`model_not_found`, and the session goes on."""
    client = await asked(world)
    client.texts["m"] = bytearray()
    await client.send(type="generate", id="m", prompt="?", model="gpt-7")
    client.read()
    assert client.ends["m"]["code"] == "model_not_found"
    await finish(world, client)
    assert client.texts["s"] == TEXT


async def test_with_the_store_away_nothing_waits(world: World) -> None:
    """`accepted` leaves at once, the level is `memory`, and text flows (§4.4)."""
    client = await asked(world)
    flaky(world).away = True
    await world.step(1)
    await world.commit()
    client.texts["t"] = bytearray()
    await client.send(type="generate", id="t", prompt="?")
    await world.step(3)
    levels = _levels(client)
    client.read()
    assert "t" in client.accepted
    assert levels == ["memory"]


async def test_when_the_store_is_back_everything_is_written_again(world: World) -> None:
    """Even if it is empty: another gateway can resume what this one remembers (§4.4)."""
    client = await asked(world, steps=4)
    flaky(world).away = True
    await world.step(4)
    await world.commit()
    client.read()
    flaky(world).away = False
    flaky(world).inner = MemoryStore(world.clock, 120)
    await world.commit()
    world.gateways[0].crash()
    await client.resume(world.gateways[1])
    await finish(world, client)
    assert client.texts["s"] == TEXT


async def test_a_store_that_is_back_is_committed_to_once_it_is_steady(world: World) -> None:
    """Clients hear of it when it has answered for a while; until then nothing waits for it (§4.4)."""
    client = await asked(world, steps=4)
    flaky(world).away = True
    await world.step(4)
    await world.commit()
    flaky(world).away = False
    await world.commit()
    assert _levels(client) == ["memory"]
    client.texts["t"] = bytearray()
    await client.send(type="generate", id="t", prompt="?")
    await world.step(2)
    client.read()
    assert "t" in client.accepted
    await steadied(world)
    assert _levels(client) == ["committed"]


def _levels(client: WindowedClient) -> list[str]:
    return [f["ack_level"] for f in client.socket.frames() if f["type"] == "checkpoint"]


async def test_a_store_that_was_emptied_is_filled_again(world: World) -> None:
    """FLUSHALL without an outage shows in the store's mark (CASES 56)."""
    client = await asked(world, steps=4)
    flaky(world).inner = MemoryStore(world.clock, 120)
    world.clock.advance(2)
    await world.commit()
    world.gateways[0].crash()
    await client.resume(world.gateways[1])
    await finish(world, client)
    assert client.texts["s"] == TEXT


async def test_usage_waits_for_the_store(world: World) -> None:
    """Events are kept until they are written."""
    client = await asked(world, steps=3)
    flaky(world).away = True
    for _ in range(30):
        await world.step()
        client.read()
        await client.ack()
    assert "s" in client.ends
    await world.commit()
    assert world.gateways[0].registry.bills_waiting == 1
    flaky(world).away = False
    await world.commit()
    assert [bill["completion_tokens"] for bill in bills(world)] == [20]
    assert world.gateways[0].registry.bills_waiting == 0


async def test_the_checkpointer_commits_by_itself(world: World) -> None:
    """Its one task needs no telling, finds the store away, and finds it back."""
    checkpointer = world.gateways[0].registry.checkpointer
    task = asyncio.create_task(checkpointer.run())
    client = await asked(world, commit=False)
    await world.step(2)
    await wait_until(lambda: client.read() >= 0 and "s" in client.accepted)
    flaky(world).away = True
    await client.ack()
    await wait_until(lambda: checkpointer.state is StoreState.AWAY)
    flaky(world).away = False
    await wait_until(lambda: checkpointer.state is StoreState.STEADYING)
    before = flaky(world).marks
    await wait_until(lambda: flaky(world).marks > before + STEADY_ANSWERS)
    world.clock.advance(STEADY_S)
    await wait_until(lambda: checkpointer.state is StoreState.THERE)
    task.cancel()
