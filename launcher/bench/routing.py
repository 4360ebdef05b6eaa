"""`make bench-routing`: how evenly and how faithfully keys find their instances, and what it costs.

Everything but the last row is arithmetic without a clock: the same figures on every machine.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import mean, pstdev, quantiles
from time import process_time
from timeit import repeat

from mesh.membership import Instance, Load
from router.policy.affinity import affinity_hash
from router.policy.scoring import Standing, Table, carried

__all__ = [
    "RoutingModel",
    "apart",
    "choose_us",
    "main",
    "moved",
    "returning",
    "spread",
    "zipf_users",
]

METHOD = "Generate"
IDS = 40_000
USERS = 1_000
ZIPF = 1.2


def _members(count: int) -> list[Instance]:
    return [Instance(f"inference-{n}", f"127.0.0.1:{n}", ("m",)) for n in range(count)]


def _owners(count: int, ids: int) -> list[str]:
    table = Table(_members(count))
    found = (table.choose(affinity_hash(f"user-{n}", METHOD)) for n in range(ids))
    return [instance.id for instance in found if instance is not None]


def spread(count: int = 8, ids: int = IDS) -> tuple[float, float]:
    """Of sequential ids on so many instances: coefficient of variation, and maximum over mean."""
    counts = Counter(_owners(count, ids)).values()
    return pstdev(counts) / mean(counts), max(counts) / mean(counts)


def moved(before: int = 8, after: int = 9, ids: int = IDS) -> float:
    """The share of keys that another number of instances sends elsewhere."""
    pairs = zip(_owners(before, ids), _owners(after, ids), strict=True)
    return sum(one != other for one, other in pairs) / ids


def zipf_users(users: int = USERS, exponent: float = ZIPF, seed: int = 1) -> Iterator[str]:
    """User after user for ever, the first of them by far the busiest."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    weights = [rank**-exponent for rank in range(1, users + 1)]
    names = [f"user-{rank}" for rank in range(1, users + 1)]
    while True:
        yield from draw.choices(names, weights, k=1000)


@dataclass
class RoutingModel:
    """Instances with prefix caches, as far as routing goes.

    A request runs while `running` others begin; an instance caches the beginnings of `cached`
    users, of whom it forgets the one who was there longest ago. `bounded` false: affinity alone
    decides, whatever the load and whoever knows the prompt.
    """

    count: int = 8
    running: int = 256
    cached: int = 200
    bounded: bool = True
    hits: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    highest: float = 0.0

    def __post_init__(self) -> None:
        self._table = Table(_members(self.count))
        self._caches = {m.id: OrderedDict[str, None]() for m in self._table.instances}
        self._live: deque[str] = deque()
        self._load: Counter[str] = Counter()

    def play(self, users: Iterable[str]) -> RoutingModel:
        """Send a request for each of them, one after the other."""
        for user in users:
            self._send(user)
        return self

    def _send(self, user: str) -> None:
        if len(self._live) >= self.running:
            self._load[self._live.popleft()] -= 1
        chosen = self._choose(user)
        self._live.append(chosen)
        self._load[chosen] += 1
        self.sent[chosen] += 1
        if len(self._live) == self.running:
            self.highest = max(self.highest, self._load[chosen] * self.count / self.running)
        cache = self._caches[chosen]
        self.hits += user in cache
        cache[user] = None
        cache.move_to_end(user)
        if len(cache) > self.cached:
            cache.popitem(last=False)

    def _choose(self, user: str) -> str:
        holders: list[list[str]] = []
        if self.bounded:
            self._table.carry([self._load[m.id] for m in self._table.instances])
            holders = [[name for name, cache in self._caches.items() if user in cache]]
        chosen = self._table.choose(affinity_hash(user, METHOD), holders)
        assert chosen is not None  # noqa: S101 - nobody is excluded
        return chosen.id


def returning(
    count: int = 8, running: int = 1024, *, digests: bool = True, rounds: int = 40, seed: int = 1
) -> float:
    """The share of returning users who find their former instance, while load comes and goes.

    In each round a fifth of all streams end, whichever, and others of 4,000 users begin. `digests`:
    instances report whose beginnings they have.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    table = Table(_members(count))
    load: Counter[str] = Counter()
    live: list[str] = []
    home: dict[str, str] = {}
    same = again = 0
    for _ in range(rounds):
        draw.shuffle(live)
        for gone in [live.pop() for _ in range(len(live) // 5)]:
            load[gone] -= 1
        while len(live) < running:
            user = f"user-{draw.randrange(4_000)}"
            table.carry([load[m.id] for m in table.instances])
            known = [[home[user]]] if digests and user in home else []
            chosen = table.choose(affinity_hash(user, METHOD), known)
            assert chosen is not None  # noqa: S101
            again += user in home
            same += home.get(user) == chosen.id
            home[user] = chosen.id
            live.append(chosen.id)
            load[chosen.id] += 1
    return same / again


def apart(gateways: int = 4, count: int = 8, running: int = 256, stream_s: float = 1.0) -> float:
    """p99 of the fullest over the mean, when gateways know of each other by reports alone.

    Each instance reports once a second; streams of `zipf_users` last `stream_s` on the average, and
    each begins at any gateway.
    """
    draw = random.Random(1)  # noqa: S311 - no secret
    tables = [Table(_members(count)) for _ in range(gateways)]
    own = [Counter[str]() for _ in range(gateways)]
    known = [{m.id: Standing(m) for m in _members(count)} for _ in range(gateways)]
    ends: list[tuple[float, int, str]] = []
    skews: list[float] = []
    now, due = 0.0, {m.id: n / count for n, m in enumerate(_members(count))}
    for user in islice(zipf_users(), running * 40):
        now += draw.expovariate(running / stream_s)
        while ends and ends[0][0] <= now:
            _, gateway, gone = heapq.heappop(ends)
            own[gateway][gone] -= 1
        for member in [m for m in _members(count) if due[m.id] <= now]:
            due[member.id] += 1.0
            load = Load(running=sum(counts[member.id] for counts in own))
            for counts, standings in zip(own, known, strict=True):
                reported = replace(member, load=load)
                standings[member.id] = Standing(reported, own_reported=counts[member.id])
        at = draw.randrange(gateways)
        tables[at].carry(carried([replace(s, own=own[at][i]) for i, s in known[at].items()]))
        chosen = tables[at].choose(affinity_hash(user, METHOD))
        assert chosen is not None  # noqa: S101
        own[at][chosen.id] += 1
        heapq.heappush(ends, (now + draw.expovariate(1 / stream_s), at, chosen.id))
        loads = [sum(counts[m.id] for counts in own) for m in tables[at].instances]
        skews.append(max(loads) * count / sum(loads))
    return quantiles(skews[running * 10 :], n=100)[98]


def choose_us(count: int = 64, *, equal: bool = True) -> float:
    """CPU time of one choice in µs, the best of some runs; `equal` weights take a short cut."""
    members = [
        Instance(m.id, m.address, m.models, weight=1.0 if equal else 1.0 + n % 3)
        for n, m in enumerate(_members(count))
    ]
    table = Table(members)
    table.carry([8.0] * count)
    keys = [affinity_hash(f"user-{n}", METHOD) for n in range(1_000)]

    def choose_all() -> None:
        for key in keys:
            table.choose(key)

    return min(repeat(choose_all, number=1, repeat=20, timer=process_time)) / len(keys) * 1e6


def main() -> None:
    """Print the table."""
    variation, skew = spread()
    users = list(islice(zipf_users(), 20_000))
    bounded, plain = (RoutingModel(bounded=b).play(users) for b in (True, False))
    share = max(bounded.sent.values()) * bounded.count / len(users)
    few = [returning(running=256, seed=seed) for seed in range(1, 7)]
    rows = [
        ("40,000 sequential ids on 8 instances: variation", f"{variation:.1%}", "≤ 3 %"),
        ("… the fullest over the mean", f"{skew:.3f}", "≤ 1.1"),
        ("keys that move from 8 to 9 instances", f"{moved():.1%}", "≤ 12 %"),
        ("… from 9 to 8", f"{moved(9, 8):.1%}", "≤ 12 %"),
        ("Zipf(1.2), 1,000 users: the fullest over the mean", f"{bounded.highest:.2f}", "≤ 1.25"),
        ("… over the whole run", f"{share:.2f}", "≤ 1.25"),
        ("… prefix hits beside affinity alone", f"{bounded.hits / plain.hits:.1%}", "≥ 95 %"),
        ("… one gateway, streams of 1 s: p99 of the same", f"{apart(1):.2f}", ""),
        ("… four that know each other by reports", f"{apart(4):.2f}", ""),
        ("returning, a fifth of the load changing", f"{returning():.2%}", "≥ 99.2 %"),
        (
            "… of 32 streams an instance, six runs",
            f"{mean(few):.2%} ({min(few):.1%} to {max(few):.1%})",
            "≥ 99.2 %",
        ),
        ("… without digests", f"{returning(digests=False):.2%}", ""),
        ("choosing among 64", f"{choose_us():.1f} µs", "≤ 20 µs"),
        ("… of unequal weights", f"{choose_us(equal=False):.1f} µs", "≤ 20 µs"),
    ]
    print("| | measured | target |")
    print("| --- | ---: | ---: |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
