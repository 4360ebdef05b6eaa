"""Who has had how much: weighted fair shares of what computes, between tenants.

Charter: the one rule of fairness, for the engine's batch and for the gateway's way to the engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Account", "FairShare"]

# Tenants that want nothing are forgotten beyond this many, once that changes nothing for them.
ACCOUNTS_MAX = 4096


@dataclass(slots=True, eq=False)
class Account:
    """What one tenant was given: `virtual` is tokens computed for it, divided by its weight.

    `wanting` counts its sequences that wait or run.
    """

    weight: float = 1.0
    virtual: float = 0.0
    wanting: int = 0

    def charge(self, tokens: float) -> None:
        """So many tokens are computed for it; below 0: it was charged too much before."""
        self.virtual += tokens / self.weight


class FairShare:
    """Start-time fair queueing over tokens computed.

    Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996; for language models, with tokens as
    the service, Sheng et al.: "Fairness in Serving Large Language Models", OSDI 2024.

    The next turn is the tenant's who was given least. A tenant that comes back starts where those
    who stayed are now (the virtual time), so that having been away is neither saved up nor
    punished. Hence of two tenants that both wait, neither is ahead of the other by more than the
    one turn that each was last given: |A's tokens / A's weight - B's tokens / B's weight| <=
    A's longest turn / A's weight + B's longest turn / B's weight. A turn is what is planned at
    once; tokens that running sequences decode meanwhile are charged as they come.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._accounts: dict[str, Account] = {}
        self._time = 0.0
        self._stale = True

    def account(self, tenant: str, weight: float = 0.0) -> Account:
        """The tenant's account; `weight` above 0 is its weight from now on."""
        found = self._accounts.get(tenant)
        if found is None:
            if len(self._accounts) >= ACCOUNTS_MAX:
                self._forget()
            found = self._accounts[tenant] = Account(self._weights.get(tenant, 1.0))
        if weight > 0:
            found.weight = weight
        return found

    def enter(self, account: Account) -> None:
        """One more of its sequences wants to run."""
        if not account.wanting:
            account.virtual = max(account.virtual, self._virtual_time())
        account.wanting += 1

    def leave(self, account: Account) -> None:
        """One of its sequences wants nothing more."""
        account.wanting -= 1

    def tick(self) -> None:
        """A step begins: the virtual time is worked out anew when somebody asks for it."""
        self._stale = True

    def _virtual_time(self) -> float:
        # Once a step is enough: until its end it only rises, and a tenant that is given a little
        # less than the time is served a little sooner.
        if self._stale:
            self._stale = False
            accounts = self._accounts.values()
            present = [a.virtual for a in accounts if a.wanting]
            now = min(present) if present else max((a.virtual for a in accounts), default=0.0)
            self._time = max(self._time, now)
        return self._time

    def _forget(self) -> None:
        """Drop accounts that would start at the virtual time anyway."""
        self._stale = True
        now = self._virtual_time()
        self._accounts = {
            tenant: account
            for tenant, account in self._accounts.items()
            if account.wanting or account.virtual > now
        }
