"""Where budgets' accounts are kept: in the store that all gateways share, or in this process alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Protocol

from redis.exceptions import RedisError

from gateway.budgets.account import (
    DRY_MS,
    SETTLED_KEPT_MS,
    Account,
    Answer,
    Answers,
    Request,
    Seed,
    Settle,
    Verdict,
)
from gateway.store.base import StoreUnavailableError
from mesh.clock import Clock
from mesh.store_link import Argument, Script, open_link

__all__ = ["ACCOUNTS_KEPT_MAX", "AccountName", "BudgetStore", "MemoryBudgets", "RedisBudgets"]

_SCRIPT = Script((resources.files("gateway.store") / "scripts" / "budget.lua").read_text())
# A month's account is kept until nobody can ask about it any more; a budget without period for ever.
KEPT_MS = 70 * 86_400_000
_ANSWER_HEAD = 3
_ANSWER_PARTS = 3
# In memory: over it the accounts of periods go that nobody has asked for the longest, and that nothing is held in.
ACCOUNTS_KEPT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class AccountName:
    """One budget in one period. `limit` and `soft` are what the configuration says now."""

    name: str
    limit: int | None
    soft: int | None
    ends: bool


class BudgetStore(Protocol):
    """Both implementations are held to the same behaviour by one suite."""

    async def apply(
        self, account: AccountName, requests: Sequence[Request], born_ms: int = 0
    ) -> Answers:
        """Do all requests in order, at once. Raises `StoreUnavailableError`; it may have happened then.

        `born_ms`: the moment (Unix ms) at which an account that is new is born; 0: there is no ledger.
        """
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


class MemoryBudgets:
    """Accounts of one process, by its clock. Gateways of one test share one object."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.accounts: dict[str, Account] = {}
        self._ending: OrderedDict[str, None] = OrderedDict()

    async def apply(
        self, account: AccountName, requests: Sequence[Request], born_ms: int = 0
    ) -> Answers:
        """Do them; see the base."""
        books = self.accounts.setdefault(account.name, Account())
        if account.ends:
            self._ending[account.name] = None
            self._ending.move_to_end(account.name)
        now_ms = round(self._clock.monotonic() * 1000)
        answers = books.apply(requests, account.limit, account.soft, now_ms, born_ms)
        if len(self.accounts) > ACCOUNTS_KEPT_MAX:
            self._drop_idlest()
        return answers

    def _drop_idlest(self) -> None:
        idlest = next((name for name in self._ending if not self.accounts[name].holds), None)
        if idlest is not None:
            del self.accounts[idlest], self._ending[idlest]

    async def close(self) -> None:
        """Nothing is held."""


class RedisBudgets:
    """Accounts in the mesh's store, by its clock."""

    def __init__(self, url: str) -> None:
        self._link = open_link(url, [_SCRIPT])

    async def apply(
        self, account: AccountName, requests: Sequence[Request], born_ms: int = 0
    ) -> Answers:
        """Do them in one round trip; see the base."""
        # The braces keep an account's three keys on one node of a cluster.
        key = f"seedance:budget:{{{account.name}}}"
        arguments: list[Argument] = [
            -1 if account.limit is None else account.limit,
            -1 if account.soft is None else account.soft,
            KEPT_MS if account.ends else 0,
            SETTLED_KEPT_MS,
            DRY_MS,
            born_ms,
        ]
        for request in requests:
            arguments += _words(request)
        try:
            (reply,) = await self._link.ask([_SCRIPT.call([key], arguments)])
        except (RedisError, OSError) as error:
            raise StoreUnavailableError(type(error).__name__) from error
        crossed, born_ms, unseeded = reply[:_ANSWER_HEAD]
        columns = (reply[_ANSWER_HEAD + part :: _ANSWER_PARTS] for part in range(_ANSWER_PARTS))
        holds = (
            Answer(held, Verdict(verdict), bool(dry))
            for held, verdict, dry in zip(*columns, strict=True)
        )
        return Answers(tuple(holds), bool(crossed), born_ms, bool(unseeded))

    async def close(self) -> None:
        """Give back connections."""
        await self._link.close()


def _words(request: Request) -> tuple[str | int, ...]:
    if isinstance(request, Settle):
        return ("settle", request.stream, request.cost, request.ended_ms)
    if isinstance(request, Seed):
        return ("seed", request.cost)
    return (
        *("hold", request.stream, request.want, request.least, request.used),
        *(request.step, request.ttl_ms, int(request.returns), int(request.lasting)),
    )
