"""The gateway's purses and their accounts: gathers what the purses ask, asks the store, and tells the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.budgets.account import Answers, Hold, Request, Settle
from gateway.budgets.model import Budget, Period, Tariff, Unit, period_name
from gateway.budgets.prices import PlanPrices
from gateway.budgets.purse import (
    Answered,
    Ask,
    Begin,
    Credit,
    Cut,
    Ended,
    Event,
    Funded,
    Purse,
    Received,
    Tick,
    Want,
)
from gateway.budgets.seeds import AskUsage, Seeds
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
    what: Request
    spending: Spending | None


class Spending:
    """One stream's purse at the desk. Made by `BudgetDesk.open`.

    `tariffs`: what it was admitted at, by account, in a dictionary that may be its owner's (who stores it).
    """

    def __init__(
        self,
        desk: BudgetDesk,
        budgets: Sequence[Budget],
        purse: Purse,
        started_ms: int,
        tariffs: dict[str, Tariff],
    ) -> None:
        self.purse = purse
        self.host: Spender | None = None
        self._desk = desk
        self._budgets = budgets
        self._started_ms = started_ms
        self._tariffs = tariffs
        # What it has to pay for, until prices are known; what it cost, if it ended before.
        self._unpriced: tuple[int, str] | None = None
        self._cost: Usage | None = None
        self._accounts: dict[str, AccountName] = {}
        self._budget_of: dict[str, Budget] = {}

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

    def ended(self) -> None:
        """The stream makes no more tokens; it is settled later, with others."""
        self.step(Ended())

    def settle(self, usage: Usage | None) -> None:
        """The stream has ended and is billed this (None: nothing)."""
        if self._unpriced is not None and usage is not None:
            # What a former owner held is to be settled, as soon as it is known at which prices.
            self.host, self._cost = None, usage
            return
        for account, settle in self.purse.settle(usage, self._desk.clock.wall_ms()):
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
        prompt_tokens, model = self._unpriced
        names = [self._admitted(budget, model) for budget in self._budgets]
        if None in names:
            return  # prices may still be told
        self._unpriced = None
        for name, budget in zip(filter(None, names), self._budgets, strict=True):
            ends = budget.period is not Period.EVER
            self._accounts[name] = AccountName(name, budget.hard, budget.soft, ends)
            self._budget_of[name] = budget
        self.step(Begin(prompt_tokens, [(name, self._tariffs[name]) for name in self._accounts]))
        if self._cost is not None:
            self.settle(self._cost)

    def _admitted(self, budget: Budget, model: str) -> str | None:
        """The account of the period in which it began, its tariff being known; None: it is not yet.

        As a former owner had it; else by the plan.
        """
        # Its amounts are no part of the name: a budget that is raised goes on with what is spent.
        stem = f"{budget.tenant}/{budget.key}/{budget.unit.value}/{budget.period.value}/"
        former = next((name for name in self._tariffs if name.startswith(stem)), None)
        if former is not None:
            return former
        plan, tokens = self._desk.prices.of(budget.tenant), budget.unit is Unit.TOKENS
        if plan is None or not (tokens or plan.document):
            return None
        name = stem + period_name(budget.period, plan.zone, self._started_ms)
        self._tariffs[name] = Tariff() if tokens else plan.tariff(model, self._started_ms)
        return name

    def heard(self, account: AccountName, answers: Answers, seeds: Seeds) -> bool:
        """An account that it asks has answered. Whether its books are new."""
        period = account.name.rpartition("/")[-1]
        return seeds.heard(account, self._budget_of[account.name], period, answers)

    def renew(self, account: str) -> None:
        """Tell the account, whose books are new, what is held here."""
        self.purse.renew(account)
        self.step(Tick())


class BudgetDesk:
    """Opens purses; `run` is its one task. `on_soft` and `on_cut` hear of budgets that are reached."""

    def __init__(
        self,
        budgets: BudgetsOf,
        store: BudgetStore,
        prices: PlanPrices,
        clock: Clock,
        *,
        ask_usage: AskUsage | None = None,
        on_soft: Callable[[str], None] = lambda _tenant: None,
        on_cut: Callable[[str], None] = lambda _code: None,
    ) -> None:
        self.prices = prices
        self.clock = clock
        self._budgets = budgets
        self._store = store
        self._seeds = Seeds(
            ask_usage, prices, clock, lambda account, seed: self.put(_Request(account, seed, None))
        )
        self._on_soft = on_soft
        self._on_cut = on_cut
        self._open: dict[Spending, None] = {}
        self._waiting: dict[str, list[_Request]] = {}
        self._wake = asyncio.Event()
        self.lost = 0

    def open(
        self,
        name: str,
        tenant: str,
        key: str,
        started_ms: int,
        *,
        resume_ttl_s: float | None,
        tariffs: dict[str, Tariff] | None = None,
    ) -> Spending | None:
        """A purse for a stream; None: no budget counts it. `resume_ttl_s` None: nobody can find it again.

        `tariffs`: what a former owner admitted it at; what becomes known is added.
        """
        budgets = self._budgets(tenant, key)
        if not budgets:
            return None
        purse = Purse(name, resume_ttl_s is not None, resume_ttl_s or 0.0)
        admitted_at = {} if tariffs is None else tariffs
        spending = Spending(self, budgets, purse, started_ms, admitted_at)
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
                tasks.create_task(self._seeds.run())
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
        batch = [r for r in batch if not isinstance(r.what, Hold) or r.spending in self._open]
        holds = [request for request in batch if isinstance(request.what, Hold)]
        try:
            asked = [request.what for request in batch]
            answers = await self._store.apply(account, asked, self._seeds.born_ms)
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
        speaker = holds[-1].spending if holds else None
        if speaker is not None and speaker.heard(account, answers, self._seeds):
            for spending in list(self._open):
                self._safely(spending, partial(spending.renew, account.name))

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
