"""Which instance takes a key: rendezvous hashing with bounded load (the contract's routing rule).

Pure: the same instances, the same reports and the same key give the same answer in every gateway and
in every router, and no router is asked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from mesh.membership import EVERY_CLASS, Instance
from router.policy.affinity import Rendezvous, affinity_hash

__all__ = [
    "DEFAULT_CLASS",
    "Choice",
    "Outcome",
    "RouteKey",
    "Standing",
    "Table",
    "carried",
    "choose_instance",
    "eligible",
    "serves",
]

DEFAULT_CLASS = "standard"
# Nobody takes more than this times its fair share of what runs (Mirrokni, Thorup, Zadimoghaddam:
# "Consistent hashing with bounded loads", 2016).
LOAD_BOUND = 1.25
# An instance with fewer sequences than this is never passed over: a warm prefix cache is worth
# more than the even spread of so little work.
LOAD_FLOOR_SEQUENCES = 4
# So many places below the bound are kept for keys whose prompt the instance knows. With few sequences
# each, chance brings an instance to its bound all the time, and who comes back would be sent away.
PLACES_KEPT = 1


class Outcome(Enum):
    """Whether a key found its instance, and if not, why."""

    FOUND = "found"
    MODEL_UNKNOWN = "model_unknown"  # no member serves the model at all
    NONE_FREE = "none_free"  # some serve it, but all are excluded, draining or of another class


@dataclass(frozen=True, slots=True)
class RouteKey:
    """What decides. `model` empty: any; `exclude` are ids not to name.

    `canary`: a canary instance, if there is one; other keys go to one when nobody else is left.
    """

    user: str
    method: str
    model: str = ""
    instance_class: str = DEFAULT_CLASS
    exclude: frozenset[str] = frozenset()
    canary: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer; `instance` is set when `outcome` is `FOUND`."""

    outcome: Outcome
    instance: Instance | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """An instance, and what its caller knows beside the load report.

    `own` are the caller's streams there now, `own_reported` those that it had there when the
    instance made its report. A router has none.
    """

    instance: Instance
    own: int = 0
    own_reported: int = 0


def carried(standings: Sequence[Standing]) -> list[float]:
    """How many sequences each carries: the caller's own, and what is reported of the others'.

    A report is up to a second old. What others have there is taken to have changed since as one's
    own has: with four gateways under the same traffic that halves the error.

    Whose report is missing or too old is unknown: neither full nor empty, but as busy with others'
    as those are, by weight, of whom one knows (CASES 78).
    """
    others = [_of_others(standing) for standing in standings]
    known = [
        (o, s.instance.weight) for o, s in zip(others, standings, strict=True) if o is not None
    ]
    per_weight = sum(o for o, _ in known) / sum(w for _, w in known) if known else 0.0
    return [
        s.own + (per_weight * s.instance.weight if o is None else o)
        for o, s in zip(others, standings, strict=True)
    ]


def _of_others(standing: Standing) -> float | None:
    load = standing.instance.load
    if load is None:
        return None
    reported = max(0, load.sequences - standing.own_reported)
    return reported * (standing.own + 1) / (standing.own_reported + 1)


class Table:
    """Those who may take a key; made when they change, asked for every key.

    `carry` says what they carry, `add` that one of them has been given something since.
    """

    def __init__(self, instances: Iterable[Instance]) -> None:
        # By id, so that ties go to the lower one.
        self.instances = tuple(sorted(instances, key=lambda instance: instance.id))
        weights = [instance.weight for instance in self.instances]
        self._rendezvous = Rendezvous([instance.id for instance in self.instances], weights)
        self._bounds = [LOAD_BOUND * weight / sum(weights) for weight in weights]
        self._place = {instance.id: n for n, instance in enumerate(self.instances)}
        self._carried = [0.0] * len(weights)

    def carry(self, sequences: Sequence[float]) -> None:
        """What each carries now, in the order of `instances`."""
        self._carried = list(sequences)

    def add(self, instance_id: str) -> None:
        """One sequence more for an instance."""
        self._carried[self._place[instance_id]] += 1

    def choose(
        self,
        key: int,
        holders: Iterable[Collection[str]] = (),
        exclude: Collection[str] = (),
    ) -> Instance | None:
        """Who takes a key; None when all are excluded.

        `holders` are the ids of those who know the prompt's beginning, the longest first: among
        instances below their bound the longest wins. Affinity decides between equals, and when
        nobody knows it, and then the last place below the bound is kept. Those at their bound leave the key to the next in its order: it cannot
        happen that all are, unless some are excluded; then affinity alone decides.
        """
        scores = self._rendezvous.scores(key)
        for instance_id in exclude:
            if instance_id in self._place:
                scores[self._place[instance_id]] = 0.0
        total = 1 + sum(self._carried)
        for ids in holders:
            known = [0.0] * len(scores)
            for place in (self._place[i] for i in ids if i in self._place):
                known[place] = scores[place]
            best = self._best(known, total)
            if best is not None:
                return best
        return self._best(scores.copy(), total, PLACES_KEPT) or self._first(scores)

    def _best(self, scores: list[float], total: float, kept: int = 0) -> Instance | None:
        """The highest score above 0 among those below their bound less `kept`; uses up the list."""
        while highest := max(scores, default=0.0):
            place = scores.index(highest)
            if self._carried[place] < self._bound(place, total, kept):
                return self.instances[place]
            scores[place] = 0.0
        return None

    def _bound(self, place: int, total: float, kept: int) -> float:
        return max(LOAD_FLOOR_SEQUENCES, math.ceil(self._bounds[place] * total) - kept)

    def _first(self, scores: list[float]) -> Instance | None:
        highest = max(scores, default=0.0)
        return self.instances[scores.index(highest)] if highest else None


def serves(instance: Instance, model: str) -> bool:
    """Whether it has the model; empty: any."""
    return not model or model in instance.models


def eligible(instance: Instance, key: RouteKey) -> bool:
    """Whether it has the key's model and class, and takes something new."""
    return (
        serves(instance, key.model)
        and not instance.draining
        and instance.instance_class in (EVERY_CLASS, key.instance_class or DEFAULT_CLASS)
    )


def choose_instance(instances: Iterable[Instance], key: RouteKey) -> Choice:
    """The rule as a whole, for whoever has no streams of its own and no connection to anybody.

    Who has lapsed is named only when there is nobody else.
    """
    members = list(instances)
    if not any(serves(member, key.model) for member in members):
        return Choice(Outcome.MODEL_UNKNOWN)
    candidates = [member for member in members if eligible(member, key)]
    hashed = affinity_hash(key.user, key.method)
    for canary in (key.canary, not key.canary):
        for lapsed in (False, True):
            group = [i for i in candidates if i.canary is canary and i.lapsed is lapsed]
            table = Table(group)
            table.carry(carried([Standing(instance) for instance in table.instances]))
            best = table.choose(hashed, exclude=key.exclude)
            if best is not None:
                return Choice(Outcome.FOUND, best)
    return Choice(Outcome.NONE_FREE)
