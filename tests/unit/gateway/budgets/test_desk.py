"""`gateway.budgets.desk`: between purses and accounts, with prices that come late and a store that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from gateway.budgets.account import Answers, Request, Settle
from gateway.budgets.desk import BudgetDesk, Spending
from gateway.budgets.model import read_budgets
from gateway.budgets.prices import PlanPrices
from gateway.store.base import StoreUnavailableError
from gateway.store.budgets import AccountName, MemoryBudgets
from mesh.clock import SystemClock
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Usage
from tests.support.waiting import wait_until

BUDGETS = read_budgets("acme=20 tokens/ever soft 15,acme/web=12 tokens/ever")


class _Host:
    def __init__(self, spending: Spending | None) -> None:
        assert spending is not None
        self.spending = spending
        self.is_funded = False
        self.tokens = 0
        self.error: SeedanceError | None = None
        spending.host = self

    def funded(self) -> None:
        self.is_funded = True

    def credit(self, tokens: int) -> None:
        self.tokens += tokens

    def cut(self, error: SeedanceError) -> None:
        self.error = error


class _Away(MemoryBudgets):
    """A store that can be away."""

    away = False

    async def apply(
        self, account: AccountName, requests: Sequence[Request], born_ms: int = 0
    ) -> Answers:
        if self.away:
            raise StoreUnavailableError
        return await super().apply(account, requests, born_ms)


@asynccontextmanager
async def _desk(
    store: MemoryBudgets, prices: PlanPrices | None = None, soft: list[str] | None = None
) -> AsyncIterator[BudgetDesk]:
    desk = BudgetDesk(
        lambda tenant, key: [b for b in BUDGETS if b.covers(tenant, key)],
        store,
        prices or PlanPrices(None),
        SystemClock(),
        on_soft=(soft if soft is not None else []).append,
    )
    running = asyncio.create_task(desk.run())
    try:
        yield desk
    finally:
        running.cancel()
        await asyncio.wait([running])


def _begin(desk: BudgetDesk, name: str, key: str = "", prompt_tokens: int = 4) -> _Host:
    host = _Host(desk.open(name, "acme", key, 0, resume_ttl_s=None))
    host.tokens = host.spending.call(0, 100)
    host.spending.begin(prompt_tokens, "m")
    return host


async def _make_tokens(host: _Host, tokens: int) -> None:
    """As many tokens as an engine makes with the credit it gets, up to `tokens`, or until it is cut."""
    for received in range(tokens):
        await wait_until(partial(lambda before: host.tokens > before or host.error, received))
        if host.error is None:
            host.spending.received(received + 1)


async def test_tenant_and_key_are_charged() -> None:
    """The poorer budget decides; both know what it cost; what is left is for the next."""
    store, soft = MemoryBudgets(SystemClock()), list[str]()
    async with _desk(store, soft=soft) as desk:
        assert desk.open("x", "other", "", 0, resume_ttl_s=None) is None
        first = _begin(desk, "a", "web")
        await _make_tokens(first, 9)
        assert first.error is not None
        assert first.error.code is ErrorCode.QUOTA_EXCEEDED
        assert first.tokens == 8
        first.spending.settle(Usage(4, 0, 8))
        second = _begin(desk, "b")
        await _make_tokens(second, 4)
        second.spending.settle(Usage(4, 0, 4))
        await wait_until(lambda: soft == ["acme"])
        await wait_until(lambda: store.accounts["acme//tokens/ever/ever"].spent == 20)
        assert store.accounts["acme/web/tokens/ever/ever"].spent == 12


async def test_who_comes_before_the_prices_waits_for_them() -> None:
    """Metering answers after the first stream has asked: nothing else has to happen for it to go on."""
    asked = asyncio.Event()

    async def ask(_tenant: str) -> dict[str, Any]:
        await asked.wait()
        return {"data": [msgspec.Raw(b'{"time_zone": "UTC"}')]}

    store = MemoryBudgets(SystemClock())
    async with _desk(store, PlanPrices(ask)) as desk:
        early = _begin(desk, "a")
        ended = _begin(desk, "b")
        ended.spending.settle(Usage(4, 0, 1))
        await asyncio.sleep(0)
        assert not early.is_funded
        asked.set()
        await wait_until(lambda: early.tokens)
        await wait_until(lambda: store.accounts["acme//tokens/ever/ever"].spent == 5)


async def test_a_store_that_is_away_gets_every_settling() -> None:
    """They are told again until it answers, each once."""
    store = _Away(SystemClock())
    async with _desk(store) as desk:
        host = _begin(desk, "a")
        await wait_until(lambda: host.tokens)
        store.away = True
        host.spending.settle(Usage(4, 0, 3))
        await desk.exchange()
        assert store.accounts["acme//tokens/ever/ever"].spent == 0
        store.away = False
        await wait_until(lambda: store.accounts["acme//tokens/ever/ever"].spent == 7)
        assert not store.accounts["acme//tokens/ever/ever"].holds


async def test_who_is_followed_is_settled_by_the_follower() -> None:
    """A purse that is left keeps its hold; another of the same name goes on with it."""
    store = MemoryBudgets(SystemClock())
    async with _desk(store) as desk:
        host = _begin(desk, "a")
        await wait_until(lambda: host.tokens)
        host.spending.leave()
        follower = _begin(desk, "a")
        await wait_until(lambda: follower.tokens)
        follower.spending.settle(Usage(4, 0, 9))
        await wait_until(lambda: store.accounts["acme//tokens/ever/ever"].spent == 13)


async def test_a_streams_fault_is_its_own() -> None:
    """A host that fails when it is funded, and again when it is ended for that, stops nobody else."""

    class _Broken(_Host):
        def funded(self) -> None:
            raise ZeroDivisionError

        def cut(self, error: SeedanceError) -> None:
            super().cut(error)
            raise ZeroDivisionError

    store = MemoryBudgets(SystemClock())
    async with _desk(store) as desk:
        broken = _Broken(desk.open("a", "acme", "", 0, resume_ttl_s=None))
        broken.spending.call(0, 100)
        broken.spending.begin(4, "m")
        await wait_until(lambda: broken.error)
        assert broken.error is not None
        assert broken.error.code is ErrorCode.INTERNAL
        other = _begin(desk, "b")
        await wait_until(lambda: other.tokens)
        broken.spending.settle(Usage(4, 0, 0))
        await wait_until(lambda: store.accounts["acme//tokens/ever/ever"].spent == 4)


async def test_a_gateway_that_ends_settles_what_was_on_its_way() -> None:
    """An exchange that is cut off by the end is made again: what it told are totals."""
    began = asyncio.Event()

    class _Slow(MemoryBudgets):
        async def apply(
            self, account: AccountName, requests: Sequence[Request], born_ms: int = 0
        ) -> Answers:
            settles = any(isinstance(request, Settle) for request in requests)
            if settles and not began.is_set():
                began.set()
                await asyncio.Event().wait()
            return await super().apply(account, requests, born_ms)

    store = _Slow(SystemClock())
    async with _desk(store) as desk:
        host = _begin(desk, "a")
        await wait_until(lambda: host.tokens)
        host.spending.settle(Usage(4, 0, 3))
        await began.wait()
    assert store.accounts["acme//tokens/ever/ever"].spent == 7
