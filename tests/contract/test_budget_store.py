"""The budgets' store: the script in the shared store counts as the books in Python do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
import redis.asyncio

from gateway.budgets.account import Account, Hold, Request, Seed, Settle, Verdict
from gateway.store.base import StoreUnavailableError
from gateway.store.budgets import AccountName, BudgetStore, MemoryBudgets, RedisBudgets
from mesh.clock import SystemClock
from tests.support.valkey import TestStore

# Thirty of them fit into a double.
MUCH = 2**53 // 40
STREAMS = ("a", "b b", "\u00fc/1")


def _request(random: Random) -> Request:
    def amount() -> int:
        return random.choice([random.randrange(60), random.randrange(60), random.randrange(MUCH)])

    if random.random() < 0.2:
        return Settle(random.choice(STREAMS), amount(), random.randrange(2, 5))
    if random.random() < 0.05:
        return Seed(amount())
    return Hold(
        random.choice(STREAMS),
        want=amount(),
        least=amount(),
        used=amount(),
        step=random.randrange(8),
        ttl_ms=60_000,
        returns=random.random() < 0.5,
        lasting=random.random() < 0.5,
    )


async def test_the_script_is_the_books(valkey: TestStore) -> None:
    """The same answers to the same requests, digit for digit, up to amounts that fill a double."""
    store = RedisBudgets(valkey.url)
    try:
        for seed in range(300):
            random = Random(seed)
            limit = random.choice([None, 100, 1000, MUCH])
            soft = random.choice([None, 50, MUCH])
            requests = [_request(random) for _ in range(random.randrange(30))]
            born_ms = random.choice([0, 3])
            expected = Account().apply(requests, limit, soft, 1_000_000, born_ms)
            name = AccountName(f"account {seed}", limit, soft, ends=True)
            assert await store.apply(name, requests, born_ms) == expected, f"seed {seed}"
    finally:
        await store.close()


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[BudgetStore]:
    made: BudgetStore = MemoryBudgets(SystemClock())
    if request.param == "redis":
        made = RedisBudgets(request.getfixturevalue("valkey").url)
    yield made
    await made.close()


ACCOUNT = AccountName("t//tokens/ever/ever", 10, 8, ends=False)


def _hold(stream: str, tokens: int, *, used: int = 0, ttl_ms: int = 60_000, lasting: bool) -> Hold:
    return Hold(stream, tokens, tokens, used, 1, ttl_ms, lasting=lasting)


async def test_a_hold_that_nobody_renews_runs_out(store: BudgetStore) -> None:
    """Of a stream that another gateway could find, what it used is spent; of another one, nothing is."""
    await store.apply(ACCOUNT, [_hold("s", 4, ttl_ms=30, lasting=True)])
    await store.apply(ACCOUNT, [_hold("s", 4, used=3, ttl_ms=30, lasting=True)])
    await store.apply(ACCOUNT, [_hold("h", 6, ttl_ms=30, lasting=False)])
    empty = await store.apply(ACCOUNT, [_hold("x", 1, lasting=True)])
    assert empty.holds[0].verdict is Verdict.WAIT
    async with asyncio.timeout(2):
        while (answer := await store.apply(ACCOUNT, [_hold("x", 7, lasting=True)])).holds[
            0
        ].held < 7:
            assert answer.holds[0].verdict is Verdict.WAIT
    last = await store.apply(ACCOUNT, [_hold("y", 1, lasting=True)])
    assert last.holds[0].held == 0


async def test_a_soft_budget_is_told_once(store: BudgetStore) -> None:
    """The exchange that reaches it says so, and no other one, whatever gateway asks."""
    first = await store.apply(ACCOUNT, [Settle("a", 7, 1)])
    second = await store.apply(ACCOUNT, [Settle("b", 1, 1)])
    third = await store.apply(ACCOUNT, [Settle("c", 1, 1)])
    assert [a.crossed for a in (first, second, third)] == [False, True, False]


async def test_a_month_s_account_does_not_stay_for_ever(valkey: TestStore) -> None:
    """Its keys have a time to live; those of a budget without period have none."""
    store = RedisBudgets(valkey.url)
    for name, ends in (("m", True), ("e", False)):
        requests = [_hold("a", 1, lasting=True), Settle("b", 1, 1)]
        await store.apply(AccountName(name, 10, None, ends), requests)
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        keys = [key async for key in client.scan_iter("seedance:budget:*")]
        assert len(keys) == 6
        for key in keys:
            assert (await client.pttl(key) > 0) == (b"{m}" in key)
    await store.close()


async def test_a_store_that_is_away_is_said_to_be(valkey: TestStore) -> None:
    """An unreachable server raises what the desk understands."""
    store = RedisBudgets("redis://127.0.0.1:9/0")
    with pytest.raises(StoreUnavailableError):
        await store.apply(ACCOUNT, [Settle("a", 1, 1)])
    await store.close()


async def test_memory_forgets_the_idlest_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound the account of a period goes that nobody asked for the longest; one that is used, or for ever, stays."""
    monkeypatch.setattr("gateway.store.budgets.ACCOUNTS_KEPT_MAX", 3)
    store = MemoryBudgets(SystemClock())
    for name, ends in (("ever", False), ("held", True), ("old", True), ("new", True)):
        await store.apply(AccountName(name, 10, None, ends), [Settle("a", 1, 1)])
        if name == "held":
            await store.apply(AccountName(name, 10, None, ends), [_hold("b", 1, lasting=True)])
    assert list(store.accounts) == ["ever", "held", "new"]
