"""Chooses among the members by the router's rule, from tables that are made when something changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from gateway.upstream.base import Where
from gateway.upstream.breaker import BreakerState
from gateway.upstream.member import Fitness, Member
from mesh.canary import CanaryState
from mesh.clock import Clock
from mesh.membership import Instance
from router.policy.affinity import affinity_hash
from router.policy.canary import wants_canary
from router.policy.prefixes import PrefixDirectory
from router.policy.scoring import RouteKey, Table, carried, eligible

__all__ = ["Chooser"]

_log = logging.getLogger("gateway.upstream")

METHOD = "Generate"
# What members carry is looked up as often; in between, what was given to them is added.
LOOK_EVERY_S = 0.01
# Tables are kept for so many combinations of model, class and group; clients name the classes.
TABLES_MAX = 256


class _Kind(NamedTuple):
    """A table's: whom it holds."""

    model: str
    instance_class: str
    canary: bool
    fitness: Fitness


class Chooser:
    """Holds the tables, and looks at their members often enough.

    `members` is the pool's own mapping; `current` says what is known of them by now, for reports
    grow old. Call `forget` when one of them has changed.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        current: Callable[[], tuple[Instance, ...]],
        clock: Clock,
    ) -> None:
        self.prefixes = PrefixDirectory()
        self._members = members
        self._current = current
        self._clock = clock
        self._tables: dict[_Kind, Table] = {}
        self._fitness: dict[str, Fitness] = {}
        self._ejected: set[str] = set()
        self._look_at = float("-inf")

    def forget(self) -> None:
        """Something has changed: look at once."""
        self._tables.clear()
        self._look_at = float("-inf")

    def choose(self, where: Where, canary: CanaryState) -> str | None:
        """The instance's id; None: nobody can be reached.

        First among those that are well, then among those that are full, then among those that are
        ill; in each, a canary key asks canary instances before the others. Other keys ask them last
        of all: better a version on trial than nobody.
        """
        self._look()
        key = affinity_hash(where.user, METHOD)
        goes = wants_canary(canary, key, asked=where.canary)
        holders = list(self.prefixes.holders(where.prefix))
        for kind in self._kinds_for(where, canary=goes):
            table = self._table(kind)
            probing = kind.fitness is not Fitness.ILL
            chosen = self._take(table, key, holders, where.exclude, probing=probing)
            if chosen is not None:
                table.add(chosen)
                return chosen
        return None

    def _take(
        self,
        table: Table,
        key: int,
        holders: list[Collection[str]],
        exclude: frozenset[str],
        *,
        probing: bool,
    ) -> str | None:
        """The rule's choice; `probing`: one that is half-open only when its turn for a probe has come."""
        best = table.choose(key, holders, exclude)
        if best is None or not probing or not self._half_open(best.id):
            return best.id if best else None
        if self._members[best.id].breaker.take_probe():
            return best.id
        others = table.choose(
            key, holders, exclude | {i for i in self._members if self._half_open(i)}
        )
        return others.id if others else None

    def _half_open(self, instance_id: str) -> bool:
        return self._members[instance_id].breaker.state is BreakerState.HALF_OPEN

    @staticmethod
    def _kinds_for(where: Where, *, canary: bool) -> Iterator[_Kind]:
        for fitness in (Fitness.WELL, Fitness.FULL, Fitness.ILL):
            for group in (True, False) if canary else (False,):
                yield _Kind(where.model, where.instance_class, group, fitness)
        if not canary:
            yield _Kind(where.model, where.instance_class, canary=True, fitness=Fitness.ILL)

    def _table(self, kind: _Kind) -> Table:
        table = self._tables.get(kind)
        return self._made(kind) if table is None else table

    def _made(self, kind: _Kind) -> Table:
        key = RouteKey("", METHOD, kind.model, kind.instance_class)
        table = Table(
            member.instance
            for instance_id, member in self._members.items()
            if self._fitness[instance_id] <= kind.fitness
            and member.instance.canary is kind.canary
            and eligible(member.instance, key)
        )
        self._carry(table)
        if len(self._tables) >= TABLES_MAX:
            self._tables.clear()
        self._tables[kind] = table
        return table

    def _look(self) -> None:
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        for instance in self._current():
            if instance.id in self._members:
                self._members[instance.id].follow(instance)
        self._eject(now)
        fitness = {i: m.fitness(ejected=i in self._ejected) for i, m in self._members.items()}
        if fitness != self._fitness:
            self._fitness = fitness
            self._tables.clear()
        for table in self._tables.values():
            self._carry(table)

    def _eject(self, now: float) -> None:
        ejected = {i for i, member in self._members.items() if member.ejection.out(now)}
        if 2 * len(ejected) > len(self._members):
            # When most fail, what they are given is at fault, or all are: nobody is an outlier.
            ejected = set()
        for instance_id in ejected - self._ejected:
            _log.warning("%s fails what it is given; it is left alone for a time", instance_id)
        self._ejected = ejected

    def _carry(self, table: Table) -> None:
        table.carry(carried([self._members[i.id].standing for i in table.instances]))
