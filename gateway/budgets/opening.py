"""The desk of a gateway, out of its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.billing.plans import plans_of
from gateway.billing.usage import usage_of
from gateway.budgets.desk import BudgetDesk, BudgetsOf
from gateway.budgets.model import Budget, read_budgets
from gateway.budgets.prices import PlanPrices
from gateway.config import GatewaySettings
from gateway.http_errors import HttpError
from gateway.store.budgets import BudgetStore, MemoryBudgets, RedisBudgets
from gateway.tenants.desk import Tenants
from mesh.clock import Clock
from mesh.telemetry.metrics import GatewayMetrics
from seedance.protocol.errors import ErrorCode, SeedanceError

__all__ = ["open_budgets"]


def open_budgets(
    settings: GatewaySettings,
    tenants: Tenants,
    clock: Clock,
    metrics: GatewayMetrics,
    store: BudgetStore | None = None,
) -> BudgetDesk:
    """The desk, not running yet; its accounts are beside the sessions unless `store` is given."""
    if store is None:
        store = RedisBudgets(settings.redis) if settings.redis else MemoryBudgets(clock)

    async def ask(tenant: str) -> dict[str, Any]:
        try:
            return await plans_of(settings, tenant)
        except HttpError as error:  # there is no price, and asking again soon changes nothing
            raise SeedanceError(ErrorCode.BAD_REQUEST, error.message) from None

    async def ask_usage(
        tenant: str, key: str, from_ms: int, until_ms: int, ended_before_ms: int
    ) -> dict[str, Any]:
        return await usage_of(
            settings, tenant, from_ms, until_ms, key=key, ended_before_ms=ended_before_ms
        )

    return BudgetDesk(
        _budgets_of(settings, tenants),
        store,
        PlanPrices(ask if settings.metering else None),
        clock,
        ask_usage=ask_usage if settings.metering else None,
        on_soft=lambda tenant: metrics.soft_budgets.labels(tenant).inc(),
        on_cut=lambda code: metrics.budget_cuts.labels(code).inc(),
    )


def _budgets_of(settings: GatewaySettings, tenants: Tenants) -> BudgetsOf:
    """The budgets of the setting `budgets`, and those of the tenants file as it is in force."""
    fixed = read_budgets(settings.budgets)

    def find(tenant: str, key: str) -> Sequence[Budget]:
        every = (*fixed, *tenants.tenant(tenant).budgets)
        return [budget for budget in every if budget.covers(tenant, key)]

    return find
