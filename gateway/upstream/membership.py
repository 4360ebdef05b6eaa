"""Which instances there are: from the router's `Watch`, or from a given list of addresses."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import grpc
import grpc.aio

from gateway.upstream.backoff import Backoff
from mesh.canary import CanaryPhase, CanaryState, Counts
from mesh.clock import Clock
from mesh.membership import Instance
from mesh.rpc.channel import Dial, open_channel
from mesh.rpc.convert import (
    canary_from_pb,
    canary_to_pb,
    counts_to_pb,
    instance_from_pb,
    load_from_pb,
)
from mesh.rpc.secret import secret_metadata
from seedance.v2 import inference_pb2, inference_pb2_grpc, router_pb2, router_pb2_grpc

__all__ = [
    "Members",
    "MembershipSource",
    "RouterWatch",
    "Snapshot",
    "StaticList",
]

_log = logging.getLogger("gateway.upstream")

# The router sends a snapshot at least once a lease; after two without one the call is dead.
SILENCE_LEASES = 2
# Instances missing under a new router have this long to register again (§7).
LINGER_LEASES = 2
# A load report older than this says nothing; the instance stays in choice (CASES 78).
LOAD_LEASES = 3
FIRST_SNAPSHOT_S = 5.0
DESCRIBE_EVERY_S = 1.0
DESCRIBE_TIMEOUT_S = 2.0
REPORT_EVERY_S = 1.0
REPORT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The membership as a router with `router_start_id` says it is."""

    router_start_id: str
    lease_s: float
    instances: tuple[Instance, ...]
    canary: CanaryState = field(default_factory=CanaryState)


class Members:
    """What to make of one snapshot after another. Pure: every method is told the time.

    `canary` is the latest state that any router told; `news_for_router`: this router has not
    heard of it yet, for it has just started.
    """

    def __init__(self) -> None:
        self.canary = CanaryState()
        self.news_for_router = False
        self._known: dict[str, Instance] = {}
        self._linger_until: dict[str, float] = {}
        self._router_start_id = ""
        self._load_until = 0.0

    def apply(self, snapshot: Snapshot, now: float) -> None:
        """Take a snapshot in.

        What is missing is gone, except under a router that has just started: its instances get two
        leases to register again.
        """
        if self._router_start_id not in ("", snapshot.router_start_id):
            until = now + LINGER_LEASES * snapshot.lease_s
            self._linger_until = dict.fromkeys(self._known, until)
        self._router_start_id = snapshot.router_start_id
        self.news_for_router = snapshot.canary.revision < self.canary.revision
        if not self.news_for_router:
            self.canary = snapshot.canary
        named = {instance.id: self._whole(instance) for instance in snapshot.instances}
        self._linger_until = {
            instance_id: until
            for instance_id, until in self._linger_until.items()
            if instance_id not in named and until > now
        }
        lingering = {i: self._known[i] for i in self._linger_until}
        self._known = {**lingering, **named}
        self._load_until = now + LOAD_LEASES * snapshot.lease_s

    def _whole(self, instance: Instance) -> Instance:
        """With the prefixes of the snapshot before, when these are the same."""
        known = self._known.get(instance.id)
        if instance.prefixes is not None or known is None:
            return instance
        return replace(instance, prefixes=known.prefixes)

    def current(self, now: float) -> tuple[Instance, ...]:
        """Everybody, by id; without load reports once they are too old."""
        members = [instance for _, instance in sorted(self._known.items())]
        if now > self._load_until:
            members = [replace(instance, load=None) for instance in members]
        return tuple(members)


class MembershipSource(Protocol):
    """Something that knows the instances."""

    @property
    def canary(self) -> CanaryState:
        """Who is to go to canary instances."""
        ...

    async def run(self, on_change: Callable[[], None], counts: Callable[[], Counts]) -> None:
        """Follow the membership until cancelled; `on_change` is called when it may have changed.

        `counts` tells what has been seen of canary instances since the canary's state changed.
        """
        ...

    def current(self) -> tuple[Instance, ...]:
        """The members now, by id."""
        ...


class RouterWatch:
    """The router's membership. With the router away it keeps what it has."""

    def __init__(
        self,
        address: str,
        watcher: str,
        clock: Clock,
        dial: Dial = open_channel,
        secret: str = "",
    ) -> None:
        self._dial = dial
        self._metadata = secret_metadata(secret)
        self._address = address
        self._watcher = watcher
        self._name = f"{watcher}/{secrets.token_hex(4)}"
        self._clock = clock
        self._members = Members()

    @property
    def canary(self) -> CanaryState:
        """Who is to go to canary instances."""
        return self._members.canary

    def current(self) -> tuple[Instance, ...]:
        """The members now, by id."""
        return self._members.current(self._clock.monotonic())

    async def run(self, on_change: Callable[[], None], counts: Callable[[], Counts]) -> None:
        """Follow the router until cancelled, over any number of its lives."""
        backoff = Backoff()
        while True:
            async with self._dial(self._address) as channel:
                stub = router_pb2_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
                async with asyncio.TaskGroup() as tasks:
                    reporting = tasks.create_task(self._report(stub, counts))
                    if await self._follow(stub, on_change):
                        backoff.reset()
                    reporting.cancel()
            await backoff.wait()

    async def _follow(
        self, stub: router_pb2_grpc.RouterStub, on_change: Callable[[], None]
    ) -> bool:
        """Follow one `Watch` call to its end; whether it brought anything."""
        request = router_pb2.WatchRequest(watcher=self._watcher)
        call = stub.Watch(request, wait_for_ready=True, metadata=self._metadata)
        followed = False
        silence_s = FIRST_SNAPSHOT_S
        try:
            while True:
                async with asyncio.timeout(silence_s):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    return followed
                followed = True
                snapshot = _snapshot(message)
                silence_s = max(SILENCE_LEASES * snapshot.lease_s, DESCRIBE_EVERY_S)
                self._members.apply(snapshot, self._clock.monotonic())
                on_change()
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            _log.info("the router is away: %s", type(error).__name__)
            return followed
        finally:
            call.cancel()

    async def _report(self, stub: router_pb2_grpc.RouterStub, counts: Callable[[], Counts]) -> None:
        """Tell the router what was seen, while there is a canary or it has not heard of one.

        Asked in the loop, too, whether to end: a call that breaks in the same turn may swallow it.
        """
        task = asyncio.current_task()
        while task is not None and not task.cancelling():
            await asyncio.sleep(REPORT_EVERY_S)
            canary = self._members.canary
            if canary.phase is not CanaryPhase.RUNNING and not self._members.news_for_router:
                continue
            request = router_pb2.ReportCanaryRequest(
                gateway=self._name, state=canary_to_pb(canary), counts=counts_to_pb(counts())
            )
            try:
                await stub.ReportCanary(request, timeout=REPORT_TIMEOUT_S, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                _log.info("the router takes no report: %s", error.code().name)


def _snapshot(message: router_pb2.Membership) -> Snapshot:
    return Snapshot(
        router_start_id=message.router_start_id,
        lease_s=message.lease_ms / 1000,
        instances=tuple(instance_from_pb(instance) for instance in message.instances),
        canary=canary_from_pb(message.canary),
    )


class StaticList:
    """Instances at given addresses, each asked what it serves: for a mesh without a router."""

    def __init__(self, addresses: Sequence[str], dial: Dial = open_channel) -> None:
        self._dial = dial
        self._addresses = tuple(addresses)
        self._known: dict[str, Instance] = {}
        self._answers = 0
        self.canary = CanaryState()

    def current(self) -> tuple[Instance, ...]:
        """The instances that have answered so far, by id."""
        by_id: Iterable[Instance] = self._known.values()
        return tuple(sorted(by_id, key=lambda instance: instance.id))

    async def run(self, on_change: Callable[[], None], _counts: Callable[[], Counts]) -> None:
        """Ask each address again and again until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for address in self._addresses:
                tasks.create_task(self._ask(address, on_change))

    async def _ask(self, address: str, on_change: Callable[[], None]) -> None:
        async with self._dial(address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
            while True:
                try:
                    answer = await stub.Describe(
                        inference_pb2.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_S
                    )
                except grpc.aio.AioRpcError as error:
                    _log.debug("%s does not answer: %s", address, error.code().name)
                else:
                    self._answers += 1
                    self._known[address] = replace(
                        _described(address, answer), report=self._answers
                    )
                    on_change()
                await asyncio.sleep(DESCRIBE_EVERY_S)


def _described(address: str, answer: inference_pb2.DescribeResponse) -> Instance:
    return Instance(
        id=answer.instance,
        address=address,
        models=(answer.model, *answer.aliases),
        load=load_from_pb(answer.load),
        context_length=answer.context_length,
    )
