"""All instances as one thing: who they are, which of them is used, and the calls to them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial

from gateway.upstream.base import (
    Attach,
    NoInstanceError,
    Open,
    PressureLevel,
    StreamHandle,
    StreamListener,
    Where,
)
from gateway.upstream.breaker import Breaker, BreakerState
from gateway.upstream.chooser import Chooser
from gateway.upstream.link import Link
from gateway.upstream.member import Member
from gateway.upstream.membership import MembershipSource
from gateway.upstream.observed import Observed
from mesh.canary import Counts
from mesh.clock import Clock
from mesh.membership import EVERY_CLASS, Instance
from mesh.rpc.channel import Dial, open_channel
from mesh.rpc.secret import secret_metadata
from router.policy.scoring import serves
from seedance.protocol.errors import ErrorCode, SeedanceError

__all__ = ["InstancePool"]

_log = logging.getLogger("gateway.upstream")

RETRY_AFTER_MS = 500
_LEVELS = (PressureLevel.NONE, PressureLevel.THROTTLE, PressureLevel.PAUSE)


class _NeverOpened:
    """`StreamHandle` of a stream that no call took; its listener hears so at the next turn."""

    def __init__(self, instance: str, tell: Callable[[], None]) -> None:
        self._instance = instance
        self._telling = asyncio.get_running_loop().call_soon(tell)

    @property
    def instance(self) -> str:
        return self._instance

    def add_credit(self, tokens: int) -> None:
        """Nobody is there to use it."""

    def cancel(self) -> None:
        """There is nothing to end; the listener hears why."""

    def release(self) -> None:
        self._telling.cancel()

    def abandon(self) -> None:
        self._telling.cancel()


class InstancePool:
    """`Upstream` over gRPC. Everything happens on the event loop that runs `run`.

    `calls` is how many shared calls are held to each instance; `on_breaker` hears of the states of their
    breakers; `dial` opens a channel to one.
    """

    def __init__(
        self,
        source: MembershipSource,
        clock: Clock,
        *,
        mesh_secret: str = "",
        calls: int = 1,
        on_breaker: Callable[[str, BreakerState], None] = lambda _instance, _state: None,
        dial: Dial = open_channel,
    ) -> None:
        self._source = source
        self._clock = clock
        self._calls = calls
        self._on_breaker = on_breaker
        self._dial = dial
        self._metadata = secret_metadata(mesh_secret)
        self._members: dict[str, Member] = {}
        self._retired: list[Member] = []
        self._chooser = Chooser(self._members, source.current, clock)
        self._counts = Counts()
        self._counted = source.canary
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Follow the membership and keep the links until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await self._source.run(self._follow, self.counts)

    # ------------------------------------------------------------ choosing

    def choose(self, where: Where) -> str:
        """The instance's id by the router's rule; see the base."""
        chosen = self._chooser.choose(where, self._source.canary)
        if chosen is not None:
            return chosen
        members = self._source.current()
        if members and not any(serves(instance, where.model) for instance in members):
            raise NoInstanceError(
                ErrorCode.MODEL_NOT_FOUND,
                "`model` must be one of " + ", ".join(self.models() or ["the served ones"]),
                field="model",
            )
        raise NoInstanceError(
            ErrorCode.UNAVAILABLE,
            "no instance can take the request now",
            retry_after_ms=RETRY_AFTER_MS,
        )

    def models(self) -> list[str]:
        """Every name that is served now; see the base."""
        return sorted({name for m in self._usable_members() for name in m.instance.models})

    def ready(self) -> bool:
        """At least one instance can take a stream; see the base."""
        return any(not m.instance.draining for m in self._usable_members())

    def pressure(self) -> PressureLevel:
        """The lowest level any usable instance asks for; `PAUSE` when there is none."""
        levels = (m.pressure for m in self._usable_members())
        return min(levels, key=_LEVELS.index, default=PressureLevel.PAUSE)

    def _usable_members(self) -> list[Member]:
        return [m for m in self._members.values() if m.usable]

    # ------------------------------------------------------------ streams

    def open(self, instance: str, spec: Open, listener: StreamListener) -> StreamHandle:
        """Send `open` down a shared call; see the base."""
        return self._begin(instance, spec, listener)

    def attach(self, instance: str, spec: Attach, listener: StreamListener) -> StreamHandle:
        """Send `attach` down a shared call; see the base."""
        return self._begin(instance, spec, listener)

    def _begin(self, instance: str, spec: Open | Attach, listener: StreamListener) -> StreamHandle:
        member = self._members.get(instance)
        links = [link for link in member.links if link.ready] if member else []
        if member is None or not links:
            return _NeverOpened(instance, listener.on_broken)
        try:
            return min(links, key=lambda link: link.load).open(
                spec, self._observed(member, spec, listener)
            )
        except SeedanceError as error:
            return _NeverOpened(instance, partial(listener.on_error, error, None))

    def _observed(
        self, member: Member, spec: Open | Attach, listener: StreamListener
    ) -> StreamListener:
        counts = self.counts()
        return Observed(
            listener,
            member,
            counts.canary if member.instance.canary else counts.stable,
            self._clock,
            first_token=isinstance(spec, Open) and not spec.forced_prefix,
        )

    def counts(self) -> Counts:
        """What has been seen of canary instances and of the others since the canary changed."""
        if self._counted.revision != self._source.canary.revision:
            self._counted, self._counts = self._source.canary, Counts()
        return self._counts

    # ------------------------------------------------------------ links

    def _follow(self) -> None:
        """Bring the links in line with the membership."""
        current = {instance.id: instance for instance in self._source.current()}
        changed = current.keys() != self._members.keys()
        for instance_id, member in list(self._members.items()):
            instance = current.get(instance_id)
            if instance is None or instance.address != member.instance.address:
                self._retire(self._members.pop(instance_id))
                changed = True
            else:
                changed |= member.follow(instance)
        for instance in current.values():
            if instance.id not in self._members:
                self._members[instance.id] = self._connect(instance)
            self._chooser.prefixes.report(instance.id, instance.prefixes or frozenset())
        self._chooser.prefixes.keep(current.keys())
        if changed:
            self._chooser.forget()
        self._close_idle()

    def _connect(self, instance: Instance) -> Member:
        assert self._tasks is not None  # noqa: S101 - only `run` leads here
        member = Member(instance, Breaker(random.random, partial(self._breaker_is, instance.id)))
        for _ in range(self._calls):
            link = Link(
                instance.id,
                instance.address,
                self._metadata,
                self._clock,
                member.breaker,
                self._changed,
                partial(self._replaceable, member),
                self._dial,
            )
            member.links[link] = self._tasks.create_task(link.run())
        return member

    def _replaceable(self, member: Member) -> bool:
        """Whether somebody else who is well serves the same, as far as membership tells."""
        models, kind = set(member.instance.models), member.instance.instance_class
        return any(
            models.issubset(other.instance.models)
            and other.instance.instance_class in (EVERY_CLASS, kind)
            for other in self._members.values()
            if other.instance.id != member.instance.id and other.well
        )

    def _breaker_is(self, instance_id: str, state: BreakerState) -> None:
        level = logging.WARNING if state is BreakerState.OPEN else logging.INFO
        _log.log(level, "the breaker of %s is %s", instance_id, state.value)
        self._chooser.forget()
        self._on_breaker(instance_id, state)

    def _retire(self, member: Member) -> None:
        """Take nothing new to it; its links stay for as long as streams run on them."""
        self._retired.append(member)

    def _changed(self) -> None:
        self._chooser.forget()
        self._close_idle()

    def _close_idle(self) -> None:
        for member in [m for m in self._retired if not m.streams]:
            self._retired.remove(member)
            for task in member.links.values():
                task.cancel()
