"""Which instance takes a key: rendezvous hashing with bounded load (the contract's routing rule).

Pure: the same instances and the same key give the same answer in every gateway and in the router.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mesh.membership import EVERY_CLASS, Instance
from router.policy.affinity import affinity_hash, rendezvous_score

__all__ = ["DEFAULT_CLASS", "Choice", "Outcome", "RouteKey", "choose_instance"]

DEFAULT_CLASS = "standard"
# Nobody takes more than this times its fair share of what runs (Mirrokni, Thorup, Zadimoghaddam:
# "Consistent hashing with bounded loads", 2016).
LOAD_BOUND = 1.25
# An instance with fewer sequences than this is never passed over: a warm prefix cache is worth
# more than the even spread of so little work.
LOAD_FLOOR_SEQUENCES = 4


class Outcome(Enum):
    """Whether a key found its instance, and if not, why."""

    FOUND = "found"
    MODEL_UNKNOWN = "model_unknown"  # no member serves the model at all
    NONE_FREE = "none_free"  # some serve it, but all are excluded, draining or of another class


@dataclass(frozen=True, slots=True)
class RouteKey:
    """What decides. `model` empty: any; `exclude` are ids not to name."""

    user: str
    method: str
    model: str = ""
    instance_class: str = DEFAULT_CLASS
    exclude: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer; `instance` is set when `outcome` is `FOUND`."""

    outcome: Outcome
    instance: Instance | None = None


def _serves(instance: Instance, key: RouteKey) -> bool:
    return not key.model or key.model in instance.models


def _eligible(instance: Instance, key: RouteKey) -> bool:
    wanted = key.instance_class or DEFAULT_CLASS
    return (
        not instance.draining
        and instance.id not in key.exclude
        and instance.instance_class in (EVERY_CLASS, wanted)
    )


def _overloaded(candidates: list[Instance]) -> frozenset[str]:
    """Ids at or over their bound: 1.25 × the fair share of all known load and one more sequence.

    An instance whose load is unknown is never overloaded: reports that are late must not stop
    the service (CASES 78).
    """
    known = [(c.id, c.weight, c.load.sequences) for c in candidates if c.load is not None]
    weights = sum(weight for _, weight, _ in known)
    sequences = 1 + sum(load for _, _, load in known)
    return frozenset(
        instance_id
        for instance_id, weight, load in known
        if load >= max(LOAD_FLOOR_SEQUENCES, math.ceil(LOAD_BOUND * sequences * weight / weights))
    )


def choose_instance(instances: Iterable[Instance], key: RouteKey) -> Choice:
    """The eligible instance with the highest score that is not overloaded.

    The bound always leaves room somewhere, so affinity yields only to the next best instance.
    Ties go to the lower id.
    """
    serving = [i for i in instances if _serves(i, key)]
    if not serving:
        return Choice(Outcome.MODEL_UNKNOWN)
    candidates = [i for i in serving if _eligible(i, key)]
    if not candidates:
        return Choice(Outcome.NONE_FREE)
    hashed = affinity_hash(key.user, key.method)
    full = _overloaded(candidates)
    best = min(
        candidates,
        key=lambda i: (i.id in full, -rendezvous_score(hashed, i.id, i.weight), i.id),
    )
    return Choice(Outcome.FOUND, best)
