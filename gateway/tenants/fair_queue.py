"""Who goes to the instances next: a bounded, weighted fair queue between tenants.

So many requests may be at the instances without having begun; the rest waits here, a lane for each
tenant. So no tenant can fill the instances' queues before the others, however many it sends.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.tenants.model import PriorityClass, Tenant
from mesh.fair_share import Account, FairShare

__all__ = ["BEGIN_WITHIN_S", "PATIENCE", "WAITING_MAX", "WAIT_MAX_S", "FairQueue", "QueueFullError"]

# Requests of one tenant that wait here.
WAITING_MAX = 1024
WAIT_MAX_S = 60.0
# A request that has not begun by then (a client that takes nothing, a very long prompt) holds its place
# no longer, lest it keep others from theirs.
BEGIN_WITHIN_S = 5.0
# Of so many turns one goes by shares alone, whatever the classes: nobody starves.
PATIENCE = 8
# One tenant may hold all places but this share of them: another one finds room at once.
SPARE = 8
# How much the newest answer counts in what a tenant's next one is thought to cost.
NEWEST = 0.2

_ORDER = {PriorityClass.REALTIME: 0, PriorityClass.STANDARD: 1, PriorityClass.BATCH: 2}

T = TypeVar("T")


class QueueFullError(Exception):
    """Too many of the tenant's requests wait."""


@dataclass(slots=True, eq=False)
class _Lane(Generic[T]):
    """One tenant's requests. `cost` is what one is thought to cost, in tokens; `placed` have a place."""

    account: Account
    order: int
    waiting: deque[tuple[T, float]] = field(default_factory=deque)
    placed: int = 0
    cost: float = 1.0


@dataclass(slots=True, eq=False)
class _Entry(Generic[T]):
    """A request whose turn came: `charged` was taken for it in advance."""

    lane: _Lane[T]
    charged: float


class FairQueue(Generic[T]):
    """A request enters, has its turn, begins (its place is free then), and leaves.

    The next turn is the lane's of the first class that waits, and within it of the tenant that was
    given least, in tokens by weight. What an answer will cost is not known when its turn comes: its
    tenant is charged what its answers cost of late, and the difference at the end.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._places_each = places - places // SPARE
        self._shares = FairShare({})
        self._lanes: dict[str, _Lane[T]] = {}
        self._entries: dict[T, _Entry[T]] = {}
        # In the order in which their turns came.
        self._placed: OrderedDict[T, float] = OrderedDict()
        self._turn = 0

    @property
    def waiting(self) -> int:
        """Requests whose turn has not come."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    def enter(self, item: T, tenant: Tenant, now: float) -> None:
        """A request comes. Raises `QueueFullError`."""
        account, order = self._shares.account(tenant.name, tenant.weight), _ORDER[tenant.priority]
        lane = self._lanes.setdefault(tenant.name, _Lane(account, order))
        if len(lane.waiting) >= WAITING_MAX:
            raise QueueFullError
        lane.account, lane.order = account, order  # the file may have been read again
        self._shares.tick()
        self._shares.enter(lane.account)
        lane.waiting.append((item, now))

    def turns(self, now: float) -> list[T]:
        """The requests whose turn has come; each has a place until it begins or leaves."""
        while self._placed and next(iter(self._placed.values())) <= now - BEGIN_WITHIN_S:
            self.begun(next(iter(self._placed)))
        found: list[T] = []
        while len(self._placed) < self._places and (lane := self._next_lane()) is not None:
            item, _ = lane.waiting.popleft()
            self._entries[item] = _Entry(lane, lane.cost)
            lane.account.charge(lane.cost)
            lane.placed += 1
            self._placed[item] = now
            found.append(item)
        return found

    def _next_lane(self) -> _Lane[T] | None:
        able = [
            lane
            for lane in self._lanes.values()
            if lane.waiting and lane.placed < self._places_each
        ]
        if not able:
            return None
        self._turn = (self._turn + 1) % PATIENCE
        if self._turn == 0:
            return min(able, key=lambda lane: lane.account.virtual)
        return min(able, key=lambda lane: (lane.order, lane.account.virtual))

    def given_up(self, now: float) -> list[T]:
        """Requests that have waited for too long, and wait no more."""
        found: list[T] = []
        for lane in self._lanes.values():
            while lane.waiting and lane.waiting[0][1] <= now - WAIT_MAX_S:
                found.append(lane.waiting.popleft()[0])
                self._shares.leave(lane.account)
        return found

    def begun(self, item: T) -> bool:
        """It has its first token; whether a place became free by that."""
        if item not in self._placed:
            return False
        self._free(item, self._entries[item].lane)
        return True

    def leave(self, item: T, tenant: str, tokens: int | None) -> None:
        """It is over, or will not wait any longer; `tokens` is its cost, None: what was thought."""
        entry = self._entries.pop(item, None)
        lane = self._lanes.get(tenant) if entry is None else entry.lane
        if lane is None:
            return
        if entry is None:
            waited = [place for place in lane.waiting if place[0] is not item]
            if len(waited) == len(lane.waiting):
                return
            lane.waiting = deque(waited)
            self._shares.leave(lane.account)
        else:
            if item in self._placed:
                self._free(item, lane)
            if tokens is not None:
                lane.account.charge(tokens - entry.charged)
                lane.cost += NEWEST * (tokens - lane.cost)

    def _free(self, item: T, lane: _Lane[T]) -> None:
        del self._placed[item]
        lane.placed -= 1
        # It wants nothing more of this queue: a tenant whose clients read slowly saves nothing up.
        self._shares.leave(lane.account)

    def due_at(self) -> float | None:
        """When to ask for `turns` and `given_up` although nothing happened; None: nobody waits."""
        fronts = [lane.waiting[0][1] for lane in self._lanes.values() if lane.waiting]
        if not fronts:
            return None
        give_up_at = min(fronts) + WAIT_MAX_S
        placed_at = next(iter(self._placed.values()), None)
        return give_up_at if placed_at is None else min(give_up_at, placed_at + BEGIN_WITHIN_S)
