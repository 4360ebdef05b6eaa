"""`gateway.openai.paid`: between a reader, its instances and its budget."""

from __future__ import annotations

import asyncio

import pytest

from gateway.budgets.desk import BudgetDesk
from gateway.openai.account import Account, Caller
from gateway.openai.run import Generation
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import ChatMessage, GenerateRequest
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import make_deps

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
    generation = Generation(deps, REQUEST, Account(deps, [REQUEST], CALLER), credit=4)
    assert deps.budgets is not None
    await _exchanging(deps.budgets, generation)
    assert generation._paid is not None
    lost, error = upstream.opened[-1], SeedanceError(ErrorCode.QUOTA_EXCEEDED, "used up")
    generation.on_broken()
    generation._paid.cut(error)
    with pytest.raises(SeedanceError, match="used up"):
        await generation.whole()
    await generation.close()
    assert upstream.opened == [lost]
    assert cluster.running == 0
