"""The gateway's purses and their accounts: gathers what the purses ask, asks the store, and tells the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.budgets.account import Hold, Settle
from gateway.budgets.model import Budget, Period, Tariff, Unit, period_name
from gateway.budgets.prices import PlanPrices, TenantPlan
from gateway.budgets.purse import (
    Answered,
    Ask,
    Begin,
    Credit,
    Cut,
    Event,
    Funded,
    Purse,
    Received,
    Tick,
    Want,
)
from gateway.store.base import StoreUnavailableError
from gateway.store.budgets import AccountName, BudgetStore
from mesh.clock import Clock
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Usage

__all__ = ["BudgetDesk", "BudgetsOf", "Spender", "Spending"]

log = logging.getLogger("gateway")

# How often time passes for purses, and the shortest time between two exchanges with the store.
TICK_S = 0.05
GATHER_S = 0.002
# Requests in one exchange: a script holds the store up for as long as it runs.
REQUESTS_MAX = 500
ACCOUNTS_AT_ONCE = 16
# Settlings that wait for a store that is away; the oldest are given up, loudly.
WAITING_MAX = 100_000
_WORDS = {
    ErrorCode.QUOTA_EXCEEDED: "the budget of this tenant or key is used up",
    ErrorCode.UNAVAILABLE: "the budget of this tenant or key cannot be asked now",
}


# The budgets that count what a tenant does with a key.
BudgetsOf = Callable[[str, str], Sequence[Budget]]


class Spender(Protocol):
    """The host of one stream, as its purse commands it."""

    def funded(self) -> None:
        """Its prompt is paid for."""
        ...

    def credit(self, tokens: int) -> None:
        """Let the engine make this many more tokens."""
        ...

    def cut(self, error: SeedanceError) -> None:
        """End it, with what it has."""
        ...


@dataclass(frozen=True, slots=True)
class _Request:
    account: AccountName
    what: Hold | Settle
    spending: Spending | None


class Spending:
    """One stream's purse at the desk. Made by `BudgetDesk.open`."""

    def __init__(
        self, desk: BudgetDesk, budgets: Sequence[Budget], purse: Purse, started_ms: int
    ) -> None:
        self.purse = purse
        self.host: Spender | None = None
        self._desk = desk
        self._budgets = budgets
        self._started_ms = started_ms
        # What it has to pay for, until prices are known; what it cost, if it ended before.
        self._unpriced: tuple[int, str] | None = None
        self._cost: Usage | None = None
        self._accounts: dict[str, AccountName] = {}

    def begin(self, prompt_tokens: int, model: str) -> None:
        """An instance has counted the prompt: `Spender.funded` follows, or `Spender.cut`."""
        self._unpriced = (prompt_tokens, model)
        self._begin_if_priced()

    def call(self, tokens: int, credit: int) -> int:
        """A call to an instance begins after `tokens` tokens: the credit it may begin with."""
        return self.purse.call(tokens, credit)

    def want(self, tokens: int) -> None:
        """The window has room for so many more; `Spender.credit` follows as far as money reaches."""
        self.step(Want(tokens))

    def received(self, tokens: int) -> None:
        """The stream has so many tokens in all."""
        self.step(Received(tokens))

    def settle(self, usage: Usage | None) -> None:
        """The stream has ended and is billed this (None: nothing)."""
        if self._unpriced is not None and usage is not None:
            # What a former owner held is to be settled, as soon as it is known at which prices.
            self.host, self._cost = None, usage
            return
        for account, settle in self.purse.settle(usage):
            self._desk.put(_Request(self._accounts[account], settle, None))
        self.leave()

    def leave(self) -> None:
        """Somebody else has the stream now, and what is held for it."""
        self._desk.forget(self)

    def failed(self) -> None:
        """A fault of ours: the stream ends with what it has."""
        host = self.host
        self.leave()
        if host is not None:
            host.cut(SeedanceError(ErrorCode.INTERNAL, "the budget's books failed"))

    def step(self, event: Event) -> None:
        """Give the purse an event and do what it asks."""
        for effect in self.purse.step(event, self._desk.clock.monotonic()):
            match effect:
                case Ask(account, hold):
                    self._desk.put(_Request(self._accounts[account], hold, self))
                case _ if self.host is None:
                    pass  # it has ended
                case Funded():
                    self.host.funded()
                case Credit(tokens):
                    self.host.credit(tokens)
                case Cut(code):
                    self._desk.cut(code)
                    self.host.cut(SeedanceError(code, _WORDS[code]))

    def tick(self) -> None:
        """Time passed."""
        self._begin_if_priced()
        if self._unpriced is not None or self._accounts:
            self.step(Tick())

    def _begin_if_priced(self) -> None:
        if self._unpriced is None:
            return
        plan = self._desk.prices.of(self._budgets[0].tenant)
        money = any(budget.unit is Unit.MONEY for budget in self._budgets)
        if plan is None or (money and not plan.document):
            return  # prices may still be told
        (prompt_tokens, model), self._unpriced = self._unpriced, None
        tariffs = []
        for budget in self._budgets:
            account = _account(budget, plan, self._started_ms)
            self._accounts[account.name] = account
            tariffs.append((account.name, _tariff(budget, plan, model, self._started_ms)))
        self.step(Begin(prompt_tokens, tariffs))
        if self._cost is not None:
            self.settle(self._cost)


def _account(budget: Budget, plan: TenantPlan, moment_ms: int) -> AccountName:
    period = period_name(budget.period, plan.zone, moment_ms)
    # Its amounts are no part of the name: a budget that is raised goes on with what is spent.
    name = f"{budget.tenant}/{budget.key}/{budget.unit.value}/{budget.period.value}/{period}"
    return AccountName(name, budget.hard, budget.soft, budget.period is not Period.EVER)


def _tariff(budget: Budget, plan: TenantPlan, model: str, moment_ms: int) -> Tariff:
    return Tariff() if budget.unit is Unit.TOKENS else plan.tariff(model, moment_ms)


class BudgetDesk:
    """Opens purses; `run` is its one task. `on_soft` and `on_cut` hear of budgets that are reached."""

    def __init__(
        self,
        budgets: BudgetsOf,
        store: BudgetStore,
        prices: PlanPrices,
        clock: Clock,
        *,
        on_soft: Callable[[str], None] = lambda _tenant: None,
        on_cut: Callable[[str], None] = lambda _code: None,
    ) -> None:
        self.prices = prices
        self.clock = clock
        self._budgets = budgets
        self._store = store
        self._on_soft = on_soft
        self._on_cut = on_cut
        self._open: dict[Spending, None] = {}
        self._waiting: dict[str, list[_Request]] = {}
        self._wake = asyncio.Event()
        self.lost = 0

    def open(
        self, name: str, tenant: str, key: str, started_ms: int, *, resume_ttl_s: float | None
    ) -> Spending | None:
        """A purse for a stream; None: no budget counts it. `resume_ttl_s` None: nobody can find it again."""
        budgets = self._budgets(tenant, key)
        if not budgets:
            return None
        purse = Purse(name, resume_ttl_s is not None, resume_ttl_s or 0.0)
        spending = Spending(self, budgets, purse, started_ms)
        self._open[spending] = None
        self._wake.set()  # from now on time passes
        return spending

    def forget(self, spending: Spending) -> None:
        """Time does not pass for it any more."""
        spending.host = None
        self._open.pop(spending, None)

    def put(self, request: _Request) -> None:
        """Ask with the next exchange."""
        self._waiting.setdefault(request.account.name, []).append(request)
        self._wake.set()

    def cut(self, code: ErrorCode) -> None:
        """A stream was ended."""
        self._on_cut(code.value)

    # ------------------------------------------------------------ the task

    async def run(self) -> None:
        """Exchange, let time pass and keep prices fresh, for ever; at the end, settle, and close the store."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.prices.run())
                tasks.create_task(self._exchange_for_ever())
        finally:
            await self.exchange()
            await self._store.close()

    async def _exchange_for_ever(self) -> None:
        ticked_at = self.clock.monotonic()
        while True:
            try:
                async with asyncio.timeout(TICK_S if self._open or self._waiting else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            await self.exchange()
            now = self.clock.monotonic()
            if now >= ticked_at + TICK_S:
                ticked_at = now
                for spending in list(self._open):
                    self._safely(spending, spending.tick)
            # What is asked within this time travels together.
            await asyncio.sleep(GATHER_S)

    async def exchange(self) -> None:
        """Put everything that waits to the accounts, and tell the answers."""
        self._wake.clear()
        waiting, self._waiting = self._waiting, {}
        accounts = list(waiting.values())
        try:
            for at in range(0, len(accounts), ACCOUNTS_AT_ONCE):
                await asyncio.gather(*map(self._ask_all, accounts[at : at + ACCOUNTS_AT_ONCE]))
        except asyncio.CancelledError:
            # The gateway ends: what a stream cost is a total, and may be told twice.
            for requests in accounts:
                self._again([r for r in requests if isinstance(r.what, Settle)])
            raise

    async def _ask_all(self, requests: Sequence[_Request]) -> None:
        # One after the other: a stream's settling must not overtake what was held for it.
        for at in range(0, len(requests), REQUESTS_MAX):
            await self._ask(requests[at : at + REQUESTS_MAX])

    async def _ask(self, batch: Sequence[_Request]) -> None:
        account = batch[-1].account
        # Of a stream that has ended meanwhile nothing is to be held any more.
        batch = [r for r in batch if isinstance(r.what, Settle) or r.spending in self._open]
        holds = [request for request in batch if isinstance(request.what, Hold)]
        try:
            answers = await self._store.apply(account, [request.what for request in batch])
        except StoreUnavailableError:
            self._again([r for r in batch if isinstance(r.what, Settle)])
            for request in holds:
                self._tell(request, Answered(account.name, None))
            return
        if answers.crossed:
            log.warning("the soft budget %s is reached", account.name)
            self._on_soft(account.name.partition("/")[0])
        for request, answer in zip(holds, answers.holds, strict=True):
            self._tell(request, Answered(account.name, answer))

    def _tell(self, request: _Request, answered: Answered) -> None:
        spending = request.spending
        if spending is not None and spending in self._open:
            self._safely(spending, partial(spending.step, answered))

    def _safely(self, spending: Spending, does: Callable[[], None]) -> None:
        try:
            does()
        except Exception:  # one stream's fault must not take all other purses with it
            log.exception("the purse of stream %s cannot go on", spending.purse.name)
            with suppress(Exception):
                spending.failed()

    def _again(self, settles: Sequence[_Request]) -> None:
        """Settlings that were not answered: with the next exchange, which is at the next tick."""
        for request in settles:
            kept = self._waiting.setdefault(request.account.name, [])
            if len(kept) < WAITING_MAX:
                kept.append(request)
            else:
                self.lost += 1
                log.error(
                    "a stream's cost is missing in a budget: the store has been away for too long"
                )
