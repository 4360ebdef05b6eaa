"""The gateway's queue: whose turn it is, and that nobody fills it for others."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.tenants.fair_queue import (
    BEGIN_WITHIN_S,
    PATIENCE,
    WAIT_MAX_S,
    WAITING_MAX,
    FairQueue,
    QueueFullError,
)
from gateway.tenants.model import PriorityClass, Tenant

GOLD, FREE = Tenant("gold", weight=5), Tenant("free", weight=2)
Item = tuple[str, int]


def fill(queue: FairQueue[Item], tenant: Tenant, count: int, now: float = 0.0) -> None:
    for number in range(count):
        queue.enter((tenant.name, number), tenant, now)


def test_without_a_crowd_every_turn_is_now() -> None:
    """A request goes through at once while there are places."""
    queue: FairQueue[Item] = FairQueue(8)
    queue.enter(("free", 0), FREE, 0.0)
    assert queue.turns(0.0) == [("free", 0)]
    assert queue.due_at() is None


@pytest.mark.parametrize("costs", [{"gold": 40, "free": 40}, {"gold": 7, "free": 400}])
def test_tenants_share_by_weight_in_tokens(costs: dict[str, int]) -> None:
    """5 : 2 of the tokens within a hundredth, whatever an answer of either costs."""
    queue: FairQueue[Item] = FairQueue(4)
    tokens: Counter[str] = Counter()
    running: list[Item] = []
    for tenant in (GOLD, FREE):
        fill(queue, tenant, 20)
    for number in range(1000, 21_000):
        running += queue.turns(0.0)
        done = running.pop(0)
        queue.begun(done)
        queue.leave(done, done[0], costs[done[0]])
        tokens[done[0]] += costs[done[0]]
        queue.enter((done[0], number), GOLD if done[0] == "gold" else FREE, 0.0)
    assert tokens["gold"] / tokens["free"] == pytest.approx(2.5, rel=0.01)


def test_one_tenant_leaves_room_for_another() -> None:
    """However many one sends, another's first request has its turn at once."""
    queue: FairQueue[Item] = FairQueue(16)
    fill(queue, GOLD, 100)
    assert len(queue.turns(0.0)) == 14
    queue.enter(("free", 0), FREE, 0.0)
    assert queue.turns(0.0) == [("free", 0)]


def test_one_tenant_fills_its_own_lane_only() -> None:
    """The bound is a tenant's: at it the tenant is refused, and nobody else."""
    queue: FairQueue[Item] = FairQueue(1)
    fill(queue, GOLD, WAITING_MAX)
    with pytest.raises(QueueFullError):
        queue.enter(("gold", -1), GOLD, 0.0)
    queue.enter(("free", 0), FREE, 0.0)


def test_a_class_goes_first_and_yet_nobody_starves() -> None:
    """Realtime before batch, but for one turn in `PATIENCE`, which goes by shares."""
    fast = Tenant("fast", priority=PriorityClass.REALTIME)
    slow = Tenant("slow", priority=PriorityClass.BATCH)
    queue: FairQueue[Item] = FairQueue(1)
    fill(queue, slow, 100)
    fill(queue, fast, 100)
    order = []
    for _ in range(8 * PATIENCE):
        (item,) = queue.turns(0.0)
        order.append(item[0])
        queue.begun(item)
        queue.leave(item, item[0], 10)
    assert order.count("slow") == 8
    assert all("slow" in order[i : i + PATIENCE] for i in range(0, len(order), PATIENCE))


def test_who_does_not_begin_holds_its_place_no_longer() -> None:
    """A stream whose client takes nothing keeps nobody from his turn for more than a few seconds."""
    queue: FairQueue[Item] = FairQueue(1)
    fill(queue, GOLD, 2)
    (first,) = queue.turns(0.0)
    assert queue.turns(BEGIN_WITHIN_S - 0.01) == []
    assert queue.due_at() == BEGIN_WITHIN_S
    assert queue.turns(BEGIN_WITHIN_S) == [("gold", 1)]
    assert not queue.begun(first)
    queue.leave(first, "gold", 3)


def test_waiting_has_an_end() -> None:
    """Who waits for too long is given up, the oldest first; who leaves while waiting is forgotten."""
    queue: FairQueue[Item] = FairQueue(1)
    fill(queue, GOLD, 1)
    queue.turns(0.0)
    queue.enter(("gold", 1), GOLD, 0.0)
    queue.enter(("gold", 2), GOLD, 1.0)
    queue.enter(("gold", 3), GOLD, 2.0)
    queue.leave(("gold", 2), "gold", None)
    assert queue.given_up(WAIT_MAX_S - 0.01) == []
    assert queue.given_up(WAIT_MAX_S) == [("gold", 1)]
    assert queue.waiting == 1
    queue.leave(("gold", 99), "gold", None)
    queue.leave(("nobody", 0), "nobody", None)


def test_a_tenant_that_comes_back_has_saved_nothing_up() -> None:
    """After an hour alone the other one shares from now on: the newcomer gets no more than its share."""
    queue: FairQueue[Item] = FairQueue(1)
    fill(queue, GOLD, 500)
    for _ in range(200):
        (item,) = queue.turns(0.0)
        queue.begun(item)
        queue.leave(item, "gold", 10)
    fill(queue, FREE, 100)
    seen: Counter[str] = Counter()
    for _ in range(70):
        (item,) = queue.turns(0.0)
        seen[item[0]] += 1
        queue.begun(item)
        queue.leave(item, item[0], 10)
    assert 17 <= seen["free"] <= 23
