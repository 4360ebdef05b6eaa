"""What a period has cost by the ledger, for accounts that are new to the store: it lost its data, or a budget is new.

An account is told what ended before it was born. Events of that time may reach the ledger late (a store that
lost its data lost those on their way, and gateways tell them again), so it is told once more every minute for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.budgets.account import Answers, Seed
from gateway.budgets.model import Budget, Tariff, Unit, period_bounds_ms
from gateway.budgets.prices import PlanPrices, TenantPlan
from gateway.http_errors import HttpError
from gateway.store.budgets import AccountName
from mesh.clock import Clock
from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import Usage

__all__ = ["LATE_S", "SEEDS_WANTED_MAX", "AskUsage", "Seeds"]

# Until so long after an account's birth the ledger may come to know of what was before.
LATE_S = 600.0
AGAIN_S = 60.0
RETRY_S = 1.0
ASKED_AT_ONCE = 16
# Accounts that wait for the ledger; over it the oldest one is asked for when its streams ask again.
SEEDS_WANTED_MAX = 10_000


class AskUsage(Protocol):
    """The ledger's sums per model over generations that began in [from, until) and ended before a moment."""

    def __call__(
        self, tenant: str, key: str, from_ms: int, until_ms: int, ended_before_ms: int
    ) -> Awaitable[dict[str, Any]]:
        """As `GET /v1/usage` has them; `key` empty: with any. Raises `SeedanceError`, `HttpError`."""
        ...


@dataclass(slots=True)
class _Wanted:
    budget: Budget
    period: str
    born_ms: int
    due_at: float


class Seeds:
    """Asks for what accounts want to know; `tell` puts it to them. `ask` None: there is no ledger."""

    def __init__(
        self,
        ask: AskUsage | None,
        prices: PlanPrices,
        clock: Clock,
        tell: Callable[[AccountName, Seed], None],
    ) -> None:
        self._ask = ask
        self._prices = prices
        self._clock = clock
        self._tell = tell
        self._wanted: dict[AccountName, _Wanted] = {}
        self._wake = asyncio.Event()

    @property
    def born_ms(self) -> int:
        """When an account that is asked for now, and new, is born."""
        return 0 if self._ask is None else self._clock.wall_ms()

    def heard(self, account: AccountName, budget: Budget, period: str, answers: Answers) -> bool:
        """An account has answered: it may want to know what was before it. Whether its books are new."""
        if not answers.born_ms or not (answers.unseeded or self._young(answers.born_ms)):
            return False
        known, now = self._wanted.get(account), self._clock.monotonic()
        if known is None or known.born_ms != answers.born_ms:
            self._wanted[account] = _Wanted(budget, period, answers.born_ms, now)
            if len(self._wanted) > SEEDS_WANTED_MAX:
                del self._wanted[next(iter(self._wanted))]
            self._wake.set()
            return True
        if answers.unseeded and known.due_at > now + RETRY_S:  # what it was told was lost
            known.due_at = now + RETRY_S
        return False

    def _young(self, born_ms: int) -> bool:
        return self._clock.wall_ms() < born_ms + LATE_S * 1000

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            self._wake.clear()
            now = self._clock.monotonic()
            due = [account for account, wanted in self._wanted.items() if wanted.due_at <= now]
            for at in range(0, len(due), ASKED_AT_ONCE):
                await asyncio.gather(*map(self._seed, due[at : at + ASKED_AT_ONCE]))
            try:
                async with asyncio.timeout(RETRY_S if self._wanted else None):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _seed(self, account: AccountName) -> None:
        wanted = self._wanted.get(account)
        if wanted is None:  # put off while those before it were asked for
            return
        wanted.due_at = self._clock.monotonic() + RETRY_S
        plan = self._prices.of(wanted.budget.tenant)
        if plan is None:
            return
        try:
            cost = await self._cost(wanted, plan)
        except (SeedanceError, HttpError):
            return  # it is asked again: nothing new is granted until it answers
        self._tell(account, Seed(cost))
        wanted.due_at = self._clock.monotonic() + AGAIN_S
        if not self._young(wanted.born_ms) and self._wanted.get(account) is wanted:
            del self._wanted[account]

    async def _cost(self, wanted: _Wanted, plan: TenantPlan) -> int:
        assert self._ask is not None  # noqa: S101 - else no account was born
        budget = wanted.budget
        bounds = period_bounds_ms(budget.period, wanted.period, plan.zone)
        spans = [bounds] if budget.unit is Unit.TOKENS else plan.spans(*bounds)
        cost = 0
        for from_ms, until_ms in spans:
            used = await self._ask(budget.tenant, budget.key, from_ms, until_ms, wanted.born_ms)
            for row in used["models"]:
                money = budget.unit is Unit.MONEY
                tariff = plan.tariff(row["model"], from_ms) if money else Tariff()
                usage = Usage(row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"])
                cost += tariff.cost(usage)
        return cost
