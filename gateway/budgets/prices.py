"""What tokens cost a tenant, and by which clock its months go: its plan, as metering tells it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_CEILING, Decimal
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from gateway.budgets.model import MONEY_ATOMS, Period, Tariff, midnight_ms, period_name
from seedance.protocol.errors import SeedanceError

__all__ = ["AskPlan", "PlanPrices", "TenantPlan"]

log = logging.getLogger("gateway")

REFRESH_S = 60.0
RETRY_S = 1.0
ANY_MODEL = "*"
PRICED_TOKENS = 1000

# What `GET /v1/plans` answers the tenant. Raises `SeedanceError`, with a time to try again where that helps.
AskPlan = Callable[[str], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class TenantPlan:
    """One tenant's plan document (an empty one: no plan, hence no prices, and UTC)."""

    document: dict[str, Any]

    @property
    def zone(self) -> ZoneInfo:
        """Where its days and months begin."""
        try:
            return ZoneInfo(self.document.get("time_zone", "UTC"))
        except (ZoneInfoNotFoundError, ValueError):
            return ZoneInfo("UTC")

    def tariff(self, model: str, moment_ms: int) -> Tariff:
        """What a model's tokens cost at a moment, in atoms of the currency.

        A price that is finer than an atom is rounded up, so that a budget is never overspent.
        """
        today = period_name(Period.DAY, self.zone, moment_ms)
        for version in self.document.get("versions", ()):
            if version["since"] <= today and (not version["until"] or today < version["until"]):
                return _tariff(version["prices"].get("tokens", ()), model)
        return Tariff(0, 0, 0)

    def spans(self, from_ms: int, until_ms: int) -> list[tuple[int, int]]:
        """The parts of [from, until) (0: no bound) in each of which one version holds."""
        spans = []
        for version in self.document.get("versions", ()):
            until = version["until"]
            begin = max(from_ms, midnight_ms(date.fromisoformat(version["since"]), self.zone), 0)
            end = midnight_ms(date.fromisoformat(until), self.zone) if until else until_ms
            end = min(end, until_ms) if until_ms else end
            if not end or begin < end:
                spans.append((begin, end))
        return spans


def _tariff(prices: Iterable[dict[str, Any]], model: str) -> Tariff:
    by_name = {name: price for price in prices for name in price["models"]}
    price = by_name.get(model) or by_name.get(ANY_MODEL)
    if price is None:
        return Tariff(0, 0, 0)
    return Tariff(
        *(_atoms(price[name]) for name in ("input_per_1000", "cached_per_1000", "output_per_1000"))
    )


def _atoms(per_1000: str) -> int:
    atoms = Decimal(per_1000) * MONEY_ATOMS / PRICED_TOKENS
    return int(atoms.to_integral_value(ROUND_CEILING))


class PlanPrices:
    """Keeps the plans of tenants that have budgets; `ask` None: nobody has a plan, and all is UTC."""

    def __init__(self, ask: AskPlan | None) -> None:
        self._ask = ask
        self._plans: dict[str, TenantPlan] = {}
        self._wanted: set[str] = set()
        # Whose plan metering has lost, as far as the log has it.
        self._without: set[str] = set()
        self._wake = asyncio.Event()

    def of(self, tenant: str) -> TenantPlan | None:
        """The tenant's plan as last heard; None: it is being asked for."""
        if self._ask is None:
            return TenantPlan({})
        if tenant not in self._wanted:
            self._wanted.add(tenant)
            self._wake.set()
        return self._plans.get(tenant)

    async def run(self) -> None:
        """Ask for what is wanted, now and then again; the last known plans hold while metering is away."""
        while True:
            self._wake.clear()
            heard = [await self._hear(tenant) for tenant in sorted(self._wanted)]
            try:
                async with asyncio.timeout(REFRESH_S if all(heard) else RETRY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _hear(self, tenant: str) -> bool:
        assert self._ask is not None  # noqa: S101 - else nobody is wanted
        answered = True
        try:
            document = _document(await self._ask(tenant))
        except SeedanceError as error:
            if error.retry_after_ms is not None:
                return False
            document, answered = {}, False  # it has no plans at all
        known = self._plans.get(tenant)
        if document or known is None or not known.document:
            self._plans[tenant] = TenantPlan(document)
            self._without.discard(tenant)
        elif tenant not in self._without:
            # Metering that was started without its plan file: what costs something is not free by that.
            self._without.add(tenant)
            log.warning("metering has no plan for tenant %s any more: the last one holds", tenant)
        return answered


def _document(listed: dict[str, Any]) -> dict[str, Any]:
    for raw in listed["data"]:
        document: dict[str, Any] = msgspec.json.decode(raw)
        return document
    return {}
