"""The desk of a gateway, out of its settings."""

from __future__ import annotations

from typing import Any

from gateway.budgets.desk import BudgetDesk, BudgetsOf
from gateway.budgets.model import read_budgets
from gateway.budgets.prices import PlanPrices
from gateway.config import GatewaySettings
from gateway.openai.billing import plans_of
from gateway.store.budgets import BudgetStore, MemoryBudgets, RedisBudgets
from mesh.clock import Clock
from mesh.telemetry.metrics import GatewayMetrics

__all__ = ["budgets_in", "open_budget_store", "open_budgets"]


def budgets_in(text: str) -> BudgetsOf:
    """The budgets of the setting `budgets`. Raises `ValueError`."""
    every = read_budgets(text)
    return lambda tenant, key: [budget for budget in every if budget.covers(tenant, key)]


def open_budget_store(settings: GatewaySettings, clock: Clock) -> BudgetStore:
    """Where the accounts are: beside the sessions."""
    return RedisBudgets(settings.redis) if settings.redis else MemoryBudgets(clock)


def open_budgets(
    settings: GatewaySettings,
    budgets: BudgetsOf,
    store: BudgetStore,
    clock: Clock,
    metrics: GatewayMetrics,
) -> BudgetDesk:
    """The desk that keeps `budgets`, not running yet."""

    async def ask(tenant: str) -> dict[str, Any]:
        return await plans_of(settings, tenant)

    return BudgetDesk(
        budgets,
        store,
        PlanPrices(ask if settings.metering else None),
        clock,
        on_soft=lambda tenant: metrics.soft_budgets.labels(tenant).inc(),
        on_cut=lambda code: metrics.budget_cuts.labels(code).inc(),
    )
