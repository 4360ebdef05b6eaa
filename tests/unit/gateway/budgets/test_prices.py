"""`gateway.budgets.prices`: prices of a plan document, and what is known while metering is away."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gateway.budgets.model import MONEY_ATOMS, Tariff
from gateway.budgets.prices import PlanPrices, TenantPlan
from seedance.protocol.errors import ErrorCode, SeedanceError
from tests.support.waiting import wait_until


def _version(since: str, until: str | None, output: str) -> dict[str, Any]:
    per_1000 = {"input_per_1000": "0.08", "cached_per_1000": "0.02", "output_per_1000": output}
    named = {"models": ["big"]} | per_1000 | {"output_per_1000": "1"}
    tokens = [named, {"models": ["*"]} | per_1000]
    return {"version": since, "since": since, "until": until, "prices": {"tokens": tokens}}


PLAN = TenantPlan(
    {
        "time_zone": "Asia/Shanghai",
        "versions": [
            _version("2026-01-01", "2026-12-01", "0.16"),
            _version("2026-12-01", None, "0.2"),
        ],
    }
)
NOVEMBER_MS = int(datetime(2026, 11, 30, 15, tzinfo=UTC).timestamp() * 1000)
DECEMBER_MS = int(datetime(2026, 11, 30, 17, tzinfo=UTC).timestamp() * 1000)


def test_the_price_is_the_models_and_the_days() -> None:
    """A model that is named, the others, and a version that begins at the plan's own midnight."""
    per_token = MONEY_ATOMS // 1_000_000
    assert PLAN.tariff("small", NOVEMBER_MS) == Tariff(
        80 * per_token, 20 * per_token, 160 * per_token
    )
    assert PLAN.tariff("small", DECEMBER_MS).output == 200 * per_token
    assert PLAN.tariff("big", NOVEMBER_MS).output == 1000 * per_token
    assert PLAN.zone.key == "Asia/Shanghai"


def test_a_price_finer_than_an_atom_is_rounded_up() -> None:
    """So that no budget is overspent."""
    plan = TenantPlan({"versions": [_version("2026-01-01", None, "0.0000001")]})
    assert plan.tariff("small", NOVEMBER_MS).output == 1


def test_what_the_plan_does_not_price_costs_nothing() -> None:
    """No plan, no version that day, no price for tokens."""
    assert TenantPlan({}).tariff("small", NOVEMBER_MS) == Tariff(0, 0, 0)
    assert TenantPlan({}).zone.key == "UTC"
    early = TenantPlan({"versions": [_version("2027-01-01", None, "1")]})
    assert early.tariff("small", NOVEMBER_MS) == Tariff(0, 0, 0)


async def test_the_last_plan_heard_holds() -> None:
    """It is asked for when somebody wants it; metering that goes away, or has no plans, changes nothing that is known."""
    answers: list[dict[str, Any] | SeedanceError] = [
        SeedanceError(ErrorCode.UNAVAILABLE, "away", retry_after_ms=1),
        {"data": [msgspec.Raw(msgspec.json.encode(PLAN.document))]},
    ]
    asked: list[str] = []

    async def ask(tenant: str) -> dict[str, Any]:
        asked.append(tenant)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, SeedanceError):
            raise answer
        return answer

    prices = PlanPrices(ask)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(prices.run())
        assert prices.of("acme") is None
        await wait_until(lambda: prices.of("acme") == PLAN)
        running.cancel()
    assert set(asked) == {"acme"}


async def test_no_plans_is_an_answer() -> None:
    """Metering without a plan file: months are UTC's, and nothing is waited for."""

    async def ask(_tenant: str) -> dict[str, Any]:
        raise SeedanceError(ErrorCode.UNAVAILABLE, "there are no price plans")

    prices = PlanPrices(ask)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(prices.run())
        await wait_until(lambda: prices.of("acme") == TenantPlan({}))
        running.cancel()
    assert PlanPrices(None).of("anybody") == TenantPlan({})


async def test_a_plan_that_metering_loses_holds_on(caplog: pytest.LogCaptureFixture) -> None:
    """Metering that was started again without its plan file makes nothing free; the log says so once."""
    found = {"data": [msgspec.Raw(msgspec.json.encode(PLAN.document))]}
    answers: list[dict[str, Any]] = [found, {"data": []}, {"data": []}, found]

    async def ask(_tenant: str) -> dict[str, Any]:
        return answers.pop(0)

    prices = PlanPrices(ask)
    while answers:
        await prices._hear("acme")
        assert prices._plans["acme"] == PLAN
    assert [record.message for record in caplog.records] == [
        "metering has no plan for tenant acme any more: the last one holds"
    ]


def test_versions_divide_a_period() -> None:
    """Each span has one price; days without a version are in none."""
    november, december, january = (
        int(datetime(*day, 16, tzinfo=UTC).timestamp()) * 1000
        for day in ((2026, 10, 31), (2026, 11, 30), (2026, 12, 31))
    )
    assert PLAN.spans(november, january) == [(november, december), (december, january)]
    assert PLAN.spans(december, january) == [(december, january)]
    assert PLAN.spans(0, 0)[-1] == (december, 0)
    assert TenantPlan({}).spans(november, january) == []
