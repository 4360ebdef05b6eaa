"""Limits that hold for the whole mesh, though no gateway asks anybody while it serves: leased slices.

Each gateway tells the store about once a second what its share of a limit has been asked for, and is
lent a slice of it until `LEASE_TTL_S`, by the store's clock. The slices that are lent at one moment
are never more than the limit, so that what each gateway allows by itself is allowed in sum. A gateway
that dies gives its slices back by that time-out; one that cannot reach the store keeps what it
had last, and nobody else's grows meanwhile unless that one's has run out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Protocol

from redis.exceptions import RedisError

from gateway.store.base import StoreUnavailableError
from mesh.clock import Clock
from mesh.store_link import Command, Script, open_link

__all__ = ["LEASE_TTL_S", "Leases", "MemoryLeases", "RedisLeases", "Want", "slice_of"]

LEASE_TTL_S = 3.0
_TTL_MS = round(LEASE_TTL_S * 1000)
# Of a count's one that all are due a part of, a gateway that is due no more than this lets go.
PART_MIN = 0.1
_ROUNDING = 1e-6
_SCRIPT = Script((resources.files("gateway.store") / "scripts" / "lease.lua").read_text())


@dataclass(frozen=True, slots=True)
class Want:
    """A tenant's limit, and how much of it this gateway was asked for, in the same unit.

    `sure` is the part that it gets in any case of what it would have if all gateways had alike.
    `whole`: it is a count, of which nobody can use a part. `gateways`: how many the mesh is to have,
    of which some may be away.
    """

    tenant: str
    limit: str
    total: float
    demand: float
    sure: float = 0.0
    whole: bool = False
    gateways: int = 1


class Leases(Protocol):
    """One gateway's way to the slices."""

    async def renew(self, wants: Sequence[Want]) -> list[float]:
        """The slices until the next renewal, one for each want. Raises `StoreUnavailableError`."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


def slice_of(want: Want, others: Sequence[tuple[float, float]]) -> float:
    """The slice for one gateway; `others` are the live others' (demand, slice).

    While all that is asked for fits, each has what it is asked for and an even part of the rest, of
    which those that are away leave theirs: who comes back finds it, and refuses nobody meanwhile. Else nobody has more than an even part of what the more modest leave (max-min fairness). Of a
    count each has the whole part of that, and who finds a one that the parts leave over has it until
    nearly nothing of it is due there any more. `scripts/lease.lua` says the same.
    """
    count = len(others) + 1
    room, level = want.total, math.inf
    for place, demand in enumerate(sorted([want.demand, *(demand for demand, _ in others)])):
        even = room / (count - place)
        if demand > even:
            level = even
            break
        room -= demand
    rest = room / max(count, want.gateways) if level == math.inf else 0.0

    def fair(demand: float) -> float:
        return max(min(demand, level) + rest, want.total * want.sure / count)

    mine, free = fair(want.demand), want.total - sum(lent for _, lent in others)
    if want.whole:
        due, part = _split(mine)
        kept = sum(max(lent, _split(fair(demand))[0]) for demand, lent in others)
        mine = due + (1.0 if part > PART_MIN and want.total - kept - due >= 1 else 0.0)
    return max(0.0, min(mine, free))


def _split(amount: float) -> tuple[float, float]:
    """The whole part and what is over; what a whole lacks for having been written as a decimal is there."""
    whole = math.floor(amount + _ROUNDING)
    return float(whole), amount - whole


class MemoryLeases:
    """Slices inside one process. Gateways of one test share `lent`."""

    def __init__(
        self,
        clock: Clock,
        gateway: str = "",
        lent: dict[tuple[str, str], dict[str, tuple[float, float, float]]] | None = None,
    ) -> None:
        self._clock = clock
        self._gateway = gateway
        self._lent = {} if lent is None else lent

    async def renew(self, wants: Sequence[Want]) -> list[float]:
        """See the base."""
        return [self._renew(want) for want in wants]

    def _renew(self, want: Want) -> float:
        now = self._clock.monotonic()
        lent = self._lent.setdefault((want.tenant, want.limit), {})
        for gateway in [g for g, (_, _, until) in lent.items() if until <= now]:
            del lent[gateway]
        others = [(d, s) for g, (d, s, _) in lent.items() if g != self._gateway]
        mine = slice_of(want, others)
        lent[self._gateway] = (want.demand, mine, now + LEASE_TTL_S)
        return mine

    async def close(self) -> None:
        """Nothing is held."""


class RedisLeases:
    """Slices in Redis or Valkey: a hash for each tenant's limit, divided by a script.

    `gateway` names the process: one that is started again under another name waits for the
    old one's slices to run out.
    """

    def __init__(self, url: str, gateway: str) -> None:
        self._link = open_link(url, [_SCRIPT])
        self._gateway = gateway

    async def renew(self, wants: Sequence[Want]) -> list[float]:
        """See the base; one round trip."""
        try:
            replies = await self._link.ask([self._command(want) for want in wants])
        except (RedisError, OSError) as error:
            raise StoreUnavailableError(type(error).__name__) from error
        return [float(reply) for reply in replies]

    def _command(self, want: Want) -> Command:
        key = f"seedance:lease:{{{want.tenant}}}:{want.limit}"
        part_min = PART_MIN if want.whole else -1
        numbers = (want.total, want.demand, _TTL_MS, want.sure, part_min, want.gateways)
        return _SCRIPT.call([key], [self._gateway, *map(repr, numbers)])

    async def close(self) -> None:
        """Give back connections."""
        await self._link.close()
