"""One instance as this gateway sees it: its report, and what the gateway knows of it by itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import IntEnum

from gateway.upstream.base import PressureLevel
from gateway.upstream.breaker import Breaker, BreakerState
from gateway.upstream.ejection import Ejection
from gateway.upstream.link import Link
from mesh.membership import Instance
from router.policy.scoring import Standing

__all__ = ["Fitness", "Member"]

_LEVELS = (PressureLevel.NONE, PressureLevel.THROTTLE, PressureLevel.PAUSE)


class Fitness(IntEnum):
    """How willingly an instance is given something: the lower, the rather."""

    WELL = 0
    FULL = 1  # it has said `PAUSE`; when asked all the same it will say when to come again
    ILL = 2  # answers late, or fails what it is given: better than nobody
    AWAY = 3


@dataclass(slots=True)
class Member:
    """An instance and the links to it.

    `own_reported`: streams of this gateway there, when it made its latest load report.
    """

    instance: Instance
    breaker: Breaker
    links: dict[Link, asyncio.Task[None]] = field(default_factory=dict)
    ejection: Ejection = field(default_factory=Ejection)
    own_reported: int = 0

    @property
    def usable(self) -> bool:
        """Whether all links are up: one that broke says that the instance may be gone."""
        return all(link.ready for link in self.links)

    @property
    def well(self) -> bool:
        """Whether streams that lost their instance may come here."""
        answers = all(link.answers for link in self.links)
        return answers and self.breaker.state is BreakerState.CLOSED and not self.instance.draining

    @property
    def pressure(self) -> PressureLevel:
        """The highest level that it asks for on any link."""
        return max((link.pressure for link in self.links), key=_LEVELS.index)

    @property
    def streams(self) -> int:
        """Live streams of this gateway."""
        return sum(link.load for link in self.links)

    @property
    def standing(self) -> Standing:
        """What the routing rule goes by."""
        return Standing(self.instance, self.streams, self.own_reported)

    def follow(self, instance: Instance) -> bool:
        """Take what the router says of it now; whether it offers something else than before."""
        changed = self.instance.offer != instance.offer
        reported = (instance.start_id, instance.report)
        if reported != (self.instance.start_id, self.instance.report):
            self.own_reported = self.streams
        self.instance = instance
        return changed

    def fitness(self, *, ejected: bool) -> Fitness:
        """How fit it is for something new."""
        if not self.usable:
            return Fitness.AWAY
        if ejected or self.breaker.state is BreakerState.OPEN:
            return Fitness.ILL
        return Fitness.FULL if self.pressure is PressureLevel.PAUSE else Fitness.WELL
