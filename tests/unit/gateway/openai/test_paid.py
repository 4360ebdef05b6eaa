"""`gateway.openai.paid`: between a reader, its instances and its budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gateway.budgets.desk import BudgetDesk
from gateway.budgets.prices import PlanPrices
from gateway.openai.account import Account, Caller
from gateway.openai.choices import Choices
from gateway.openai.paid import paid_stream
from gateway.openai.run import Generation
from gateway.store.budgets import MemoryBudgets
from mesh.clock import SystemClock
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import ChatMessage, GenerateRequest, Sampling
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import make_deps
from tests.support.told_usage import kept_events, stream_bills

CALLER = Caller("acme", "acme/ada", "chat")
REQUEST = GenerateRequest(messages=(ChatMessage("user", "hi"),))


async def _exchanging(desk: BudgetDesk, generation: Generation) -> None:
    async with asyncio.TaskGroup() as tasks:
        exchanging = tasks.create_task(desk.run())
        await generation.open()
        exchanging.cancel()


async def test_who_is_cut_between_two_instances_asks_no_other() -> None:
    """Its instance is lost, its budget ends before the next one is asked: the reader hears that, and nothing runs on."""
    cluster = FakeCluster(lambda _: [b"x"] * 100_000)
    upstream = FakeUpstream(cluster)
    deps = make_deps(upstream, budgets="acme=1000000 tokens/ever")
    account = Account(deps, [REQUEST], CALLER)
    paid = paid_stream(deps, account, 0, None)
    generation = Generation(deps, REQUEST, account, credit=4, paid=paid)
    assert deps.budgets is not None
    await _exchanging(deps.budgets, generation)
    assert paid is not None
    lost, error = upstream.opened[-1], SeedanceError(ErrorCode.QUOTA_EXCEEDED, "used up")
    generation.on_broken()
    paid.cut(error)
    with pytest.raises(SeedanceError, match="used up"):
        await generation.whole()
    await generation.close()
    assert upstream.opened == [lost]
    assert cluster.running == 0


PROMPT_TOKENS, ANSWER_TOKENS, CHOICES = 7, 20, 3


@asynccontextmanager
async def _asked(budget: str, desk_prices: PlanPrices | None = None) -> AsyncIterator[Scene]:
    scene = Scene(budget, desk_prices)
    running = asyncio.create_task(scene.desk.run())
    try:
        yield scene
    finally:
        await scene.choices.close()
        await scene.desk.exchange()
        running.cancel()
        await asyncio.wait([running])


class Scene:
    """Three choices for one prompt under a budget."""

    def __init__(self, budget: str, prices: PlanPrices | None) -> None:
        store = MemoryBudgets(SystemClock())
        deps = make_deps(
            FakeUpstream(FakeCluster(lambda _: [b"x "] * ANSWER_TOKENS)),
            budgets=budget,
            budget_store=store,
        )
        assert deps.budgets is not None
        self.desk, self.accounts, self.usage = deps.budgets, store.accounts, deps.usage
        if prices is not None:
            self.desk.prices = prices
        request = replace(REQUEST, sampling=Sampling(seed=5))
        self.choices = Choices(deps, [request], CALLER, CHOICES, credit=None)

    async def answers(self) -> list[Any]:
        """All choices, whole."""
        await self.choices.open()
        return await self.choices.each(lambda _, generation: generation.whole())


async def test_a_prompt_is_paid_for_once_whatever_its_choices() -> None:
    """`n` answers fit into a budget of one prompt and their tokens, and cost what the bill says."""
    whole = PROMPT_TOKENS + CHOICES * ANSWER_TOKENS
    # Each asks for one more, before it is told that there is none.
    async with _asked(f"acme={whole + CHOICES} tokens/ever") as scene:
        assert len(await scene.answers()) == CHOICES
    (bill,) = stream_bills(kept_events(scene.usage.outbox))
    assert bill["prompt_tokens"] + bill["completion_tokens"] == whole
    assert scene.accounts["acme//tokens/ever/ever"].spent == whole


async def test_choices_wait_until_their_prompt_is_paid_for() -> None:
    """A budget that has no room for the prompt has none for the other choices' tokens either."""
    async with _asked(f"acme={PROMPT_TOKENS} tokens/ever") as scene:
        with pytest.raises(SeedanceError, match="used up"):
            await scene.answers()
    assert not stream_bills(kept_events(scene.usage.outbox))
    assert scene.accounts["acme//tokens/ever/ever"].spent == 0


async def test_tokens_that_cost_nothing_wait_for_nothing() -> None:
    """Under a plan without token prices a budget of money lets every answer pass."""

    async def ask(_tenant: str) -> dict[str, Any]:
        return {"data": [msgspec.Raw(b'{"time_zone": "UTC"}')]}

    async with _asked("acme=1 money/month", PlanPrices(ask)) as scene, asyncio.timeout(5):
        assert len(await scene.answers()) == CHOICES
