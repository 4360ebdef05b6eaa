"""Leased slices, in memory and in a real store: the limit holds in sum, and moves to who needs it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.base import StoreUnavailableError
from gateway.store.leases import LEASE_TTL_S, Leases, MemoryLeases, RedisLeases, Want, slice_of
from tests.support.clock import FakeClock
from tests.support.valkey import TestStore, running_valkey

GATEWAYS = 3


class Harness(Protocol):
    """Several gateways' ways to the same slices, and time travel."""

    gateways: list[Leases]

    async def pass_time(self, seconds: float) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self._clock = FakeClock()
        lent: dict[tuple[str, str], dict[str, tuple[float, float, float]]] = {}
        self.gateways: list[Leases] = [
            MemoryLeases(self._clock, f"g{i}", lent) for i in range(GATEWAYS)
        ]

    async def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)


class InStore:
    def __init__(self, store: TestStore) -> None:
        self._url = store.url
        self.gateways: list[Leases] = [RedisLeases(store.url, f"g{i}") for i in range(GATEWAYS)]

    async def pass_time(self, seconds: float) -> None:
        """Make every lease older: the server's clock cannot be moved."""
        async with redis.asyncio.from_url(self._url) as client:
            async for key in client.scan_iter("seedance:lease:*"):
                for gateway, lease in (await client.hgetall(key)).items():
                    demand, lent, until = lease.decode().split(":")
                    older = f"{demand}:{lent}:{int(until) - round(seconds * 1000)}"
                    await client.hset(key, gateway, older)


@pytest.fixture(scope="module")
def valkey() -> Iterator[TestStore]:
    with running_valkey() as store:
        yield store


@asynccontextmanager
async def _in_store(valkey: TestStore) -> AsyncIterator[InStore]:
    async with redis.asyncio.from_url(valkey.url) as client:
        await client.flushall()
    harness = InStore(valkey)
    yield harness
    for gateway in harness.gateways:
        await gateway.close()


@pytest.fixture(params=["memory", "store"])
async def leases(request: pytest.FixtureRequest, valkey: TestStore) -> AsyncIterator[Harness]:
    if request.param == "memory":
        yield InMemory()
        return
    async with _in_store(valkey) as harness:
        yield harness


async def ask(leases: Harness, gateway: int, demand: float, sure: float = 0.1) -> float:
    want = Want("acme", "requests", 100, demand, sure)
    (lent,) = await leases.gateways[gateway].renew([want])
    return lent


async def test_one_gateway_has_it_all(leases: Harness) -> None:
    """Nobody else asks: the whole limit is here."""
    assert await ask(leases, 0, 0) == 100
    assert await ask(leases, 0, 500) == 100


async def test_slices_follow_what_is_asked_for(leases: Harness) -> None:
    """What is asked for, and an even part of the rest; over the limit the modest have theirs first."""
    for _ in range(3):
        lent = [await ask(leases, i, demand) for i, demand in enumerate((40, 10, 10))]
    assert lent == pytest.approx([40 + 40 / 3, 10 + 40 / 3, 10 + 40 / 3])
    for _ in range(4):
        lent = [await ask(leases, i, demand) for i, demand in enumerate((300, 200, 20))]
    assert lent == pytest.approx([40, 40, 20])


async def test_a_count_is_lent_in_whole_ones(leases: Harness) -> None:
    """A single stream for three gateways is at one of them, and goes where it is asked for."""

    async def ask_all(total: float, *demands: float) -> list[float]:
        return [
            (await gateway.renew([Want("acme", "streams", total, demand, whole=True)]))[0]
            for gateway, demand in zip(leases.gateways, demands, strict=True)
        ]

    assert await ask_all(1, 0, 0, 0) == [1, 0, 0]
    assert await ask_all(1, 1, 0.5, 0) == [1, 0, 0]
    await ask_all(1, 0.1, 1, 0)
    assert await ask_all(1, 0.1, 1, 0) == [0, 1, 0]
    await ask_all(10, 9, 9, 9)
    assert await ask_all(10, 9, 9, 9) == [4, 3, 3]


async def test_a_dead_gateways_slice_comes_back(leases: Harness) -> None:
    """Kill one: when its lease has run out the others have what it had."""
    await ask(leases, 0, 90)
    await leases.pass_time(LEASE_TTL_S / 2)
    assert await ask(leases, 1, 90) == 0
    await leases.pass_time(LEASE_TTL_S / 2 + 0.01)
    assert await ask(leases, 1, 90) == 100


async def test_a_gateway_that_comes_back_finds_its_part(leases: Harness) -> None:
    """While it was away the others had what they were asked for and their part of the rest, not its own."""

    async def connect(gateway: int, demand: float) -> float:
        want = Want("acme", "connections", 10, demand, whole=True, gateways=2)
        return (await leases.gateways[gateway].renew([want]))[0]

    await connect(0, 2)
    await leases.pass_time(LEASE_TTL_S + 0.01)
    assert await connect(0, 2) == 6
    assert await connect(1, 3) == 4
    assert await connect(0, 9) == 6
    await leases.pass_time(LEASE_TTL_S + 0.01)
    assert await connect(0, 12) == 10


async def test_limits_and_tenants_are_apart(leases: Harness) -> None:
    """One call renews many; none touches another."""
    wants = [
        Want("acme", "requests", 100, 1),
        Want("acme", "tokens", 7, 1),
        Want("other", "requests", 0.5, 1),
    ]
    assert await leases.gateways[0].renew(wants) == [100, 7, 0.5]
    assert await leases.gateways[1].renew(wants[2:]) == [0]
    assert await leases.gateways[0].renew([]) == []


async def test_a_store_that_is_away_is_said_so() -> None:
    """Nothing hangs and nothing else is raised."""
    leases = RedisLeases("redis://127.0.0.1:1", "g")
    with pytest.raises(StoreUnavailableError):
        await leases.renew([Want("acme", "requests", 1, 1)])
    await leases.close()


async def test_a_store_that_does_not_answer_leaves_nothing_open(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun is given back; the log has no complaint of the library's."""
    monkeypatch.setattr("mesh.store_link.COMMAND_TIMEOUT_S", 0.05)

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(
                b"+OK\r\n" * data.count(b"CLIENT")
            )  # it is a store, until something is asked
        writer.close()

    silent = await asyncio.start_server(hear, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    leases = RedisLeases(f"redis://{host}:{port}", "g")
    with pytest.raises(StoreUnavailableError):
        await leases.renew([Want("acme", "requests", 1, 1)])
    gc.collect()
    await leases.close()
    silent.close()
    await silent.wait_closed()
    assert not caplog.records


Steps = st.lists(
    st.tuples(st.integers(0, GATEWAYS - 1), st.floats(0, 400), st.floats(0, 4)), max_size=40
)


@given(Steps)
def test_what_is_lent_is_never_more_than_the_limit(
    steps: list[tuple[int, float, float]],
) -> None:
    """Whoever asks for whatever and dies whenever: the live slices fit, at every moment."""
    clock = FakeClock()
    lent: dict[str, tuple[float, float, float]] = {}
    for gateway, demand, pause in steps:
        clock.advance(pause)
        live = {g: v for g, v in lent.items() if v[2] > clock.now}
        others = [(d, s) for g, (d, s, _) in live.items() if g != str(gateway)]
        mine = slice_of(Want("acme", "requests", 100, demand, 0.1, gateways=2), others)
        lent = {**live, str(gateway): (demand, mine, clock.now + LEASE_TTL_S)}
        assert sum(s for _, s, _ in lent.values()) <= 100 + 1e-9
        assert mine >= 0


@given(st.lists(st.floats(0, 400), min_size=1, max_size=5))
def test_when_demand_stands_still_everything_is_lent(demands: list[float]) -> None:
    """After a few rounds no part of the limit lies idle while it is wanted."""
    lent = dict.fromkeys(range(len(demands)), 0.0)
    for _ in range(30):
        for gateway, demand in enumerate(demands):
            others = [(demands[g], lent[g]) for g in lent if g != gateway]
            lent[gateway] = slice_of(Want("acme", "requests", 100, demand), others)
    assert sum(lent.values()) == pytest.approx(100, rel=1e-6)
    if sum(demands) <= 100:
        assert all(lent[g] >= demand - 1e-6 for g, demand in enumerate(demands))


@given(st.integers(1, 20), st.lists(st.floats(0, 40), min_size=1, max_size=5))
def test_no_one_of_a_count_is_lost_between_parts(total: int, demands: list[float]) -> None:
    """Each slice of a count is whole, they are never more than the count, and soon they are all of it."""
    lent = dict.fromkeys(range(len(demands)), 0.0)
    for _ in range(30):
        for gateway, demand in enumerate(demands):
            others = [(demands[g], lent[g]) for g in lent if g != gateway]
            lent[gateway] = slice_of(Want("acme", "streams", total, demand, whole=True), others)
            assert lent[gateway] == int(lent[gateway])
            assert sum(lent.values()) <= total
    assert sum(lent.values()) == total
    if sum(demands) <= total:
        assert all(lent[g] >= int(demand) for g, demand in enumerate(demands))
