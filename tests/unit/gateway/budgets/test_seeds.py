"""`gateway.budgets.seeds`: what the ledger is asked for, at its bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.budgets.account import Answers, Seed
from gateway.budgets.model import Budget, Period, Unit
from gateway.budgets.prices import PlanPrices
from gateway.budgets.seeds import Seeds
from gateway.store.budgets import AccountName
from tests.support.clock import FakeClock
from tests.support.waiting import wait_until

BORN = Answers((), born_ms=1, unseeded=True)


async def test_over_the_bound_who_waits_longest_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its turn was next: nobody else's question is lost by that."""
    monkeypatch.setattr("gateway.budgets.seeds.SEEDS_WANTED_MAX", 2)
    monkeypatch.setattr("gateway.budgets.seeds.ASKED_AT_ONCE", 1)
    told: list[str] = []

    def tell(account: AccountName, _seed: Seed) -> None:
        told.append(account.name)

    def hear(tenant: str) -> None:
        budget = Budget(tenant, "", Unit.TOKENS, Period.EVER, 10)
        seeds.heard(AccountName(tenant, 10, None, ends=False), budget, "ever", BORN)

    async def ask(
        tenant: str, key: str, from_ms: int, until_ms: int, ended_before_ms: int
    ) -> dict[str, Any]:
        assert (key, from_ms, until_ms, ended_before_ms) == ("", 0, 0, 1)
        if tenant == "a":
            hear("c")
            hear("d")
        return {"models": []}

    seeds = Seeds(ask, PlanPrices(None), FakeClock(), tell)
    hear("a")
    hear("b")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(seeds.run())
        await wait_until(lambda: {"c", "d"} <= set(told))
        running.cancel()
    assert "b" not in told
