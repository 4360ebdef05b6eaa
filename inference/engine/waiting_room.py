"""Sequences that wait to run, and whose turn it is."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from inference.engine.policy import rank
from inference.engine.sequence import Sequence
from mesh.fair_share import Account

__all__ = ["PATIENCE", "WaitingRoom"]

# Of so many turns of a tenant one is its oldest sequence's, whatever came later and more urgent.
PATIENCE = 8


def _age(sequence: Sequence) -> tuple[float, int]:
    return (sequence.arrival, sequence.id)


@dataclass(slots=True)
class _Lane:
    """One tenant's waiting sequences, by urgency and by age; `passes`: turns without the oldest."""

    account: Account
    by_rank: list[Sequence] = field(default_factory=list)
    by_age: list[Sequence] = field(default_factory=list)
    passes: int = 0

    def add(self, sequence: Sequence) -> None:
        bisect.insort(self.by_rank, sequence, key=rank)
        bisect.insort(self.by_age, sequence, key=_age)

    def remove(self, sequence: Sequence) -> None:
        if sequence is self.by_age[0]:
            self.passes = 0
        del self.by_rank[bisect.bisect_left(self.by_rank, rank(sequence), key=rank)]
        del self.by_age[bisect.bisect_left(self.by_age, _age(sequence), key=_age)]

    def next(self) -> Sequence:
        return self.by_age[0] if self.passes >= PATIENCE - 1 else self.by_rank[0]


class WaitingRoom:
    """A lane for each tenant; the turn is the tenant's who was given least (see `FairShare`).

    Within a tenant the most urgent goes first (see `rank`): priority is no means against other
    tenants. Nobody starves: a turn in `PATIENCE` is the oldest's, so a sequence before which k
    others of its tenant came waits for no more than `PATIENCE` x (k + 1) turns of its tenant (one
    that lost its blocks counts again); and as no one overtakes the sequence whose turn it is for
    being smaller, every turn comes.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for lane in self._lanes.values() for sequence in lane.by_rank)

    def add(self, sequence: Sequence) -> None:
        """It waits."""
        lane = self._lanes.get(sequence.tenant)
        if lane is None:
            lane = self._lanes[sequence.tenant] = _Lane(sequence.account)
        lane.add(sequence)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        """It waits no more."""
        lane = self._lanes[sequence.tenant]
        lane.remove(sequence)
        if not lane.by_rank:
            del self._lanes[sequence.tenant]
        self._count -= 1

    def next(self) -> Sequence | None:
        """Whose turn it is."""
        if not self._lanes:
            return None
        lane = min(self._lanes.values(), key=lambda lane: lane.account.virtual)
        return lane.next()

    def take(self, sequence: Sequence) -> None:
        """Its turn has come: it runs."""
        self._lanes[sequence.tenant].passes += 1
        self.remove(sequence)

    def check(self) -> None:
        """Assert that both orders hold the same."""
        assert self._count == sum(1 for _ in self)  # noqa: S101
        for lane in self._lanes.values():
            assert lane.by_rank == sorted(lane.by_age, key=rank)  # noqa: S101
            assert lane.by_age == sorted(lane.by_rank, key=_age)  # noqa: S101
