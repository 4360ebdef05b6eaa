"""The Router servicer: translates protobuf to registry and policy, and wakes the watchers."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import NoReturn

import grpc
import grpc.aio

from mesh.canary import SHARE_MAX
from mesh.clock import Clock
from mesh.membership import Instance
from mesh.rpc.convert import (
    canary_from_pb,
    canary_to_pb,
    counts_from_pb,
    counts_to_pb,
    instance_from_pb,
    instance_to_pb,
)
from mesh.telemetry.names import Attribute, Span
from mesh.telemetry.tracing import Tracing
from router.canary import CanaryDesk
from router.config import RouterSettings
from router.policy.affinity import affinity_hash
from router.policy.canary import wants_canary
from router.policy.scoring import Choice, Outcome, RouteKey, choose_instance
from router.registry import Registry, RegistryFullError
from seedance.v2 import router_pb2, router_pb2_grpc

__all__ = ["RouterService"]

EXPIRY_CHECKS_PER_LEASE = 10
SIGNS_OF_LIFE_PER_LEASE = 2
# However often members report, a watcher gets at most one snapshot in this time: the newest.
SNAPSHOT_GAP_S = 0.02
ID_LENGTH_MAX = 128
PREFIX_MARKS_MAX = 8_192
REASON_LENGTH_MAX = 256
MODELS_MAX = 64

_log = logging.getLogger("router")

Context = grpc.aio.ServicerContext[object, object]


async def _refuse(context: Context, status: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(status, message)
    raise AssertionError  # abort always raises


def _fault(instance: Instance) -> str:
    """What is wrong with a registration; empty: nothing."""
    host, _, port = instance.address.rpartition(":")
    if not 0 < len(instance.id) <= ID_LENGTH_MAX:
        return f"`instance.id` must have 1 to {ID_LENGTH_MAX} characters"
    if not host or not port.isdecimal():
        return "`instance.address` must be host:port"
    if not 0 < len(instance.models) <= MODELS_MAX:
        return f"`instance.models` must name 1 to {MODELS_MAX} models"
    if not math.isfinite(instance.weight) or instance.weight <= 0:
        return "`instance.weight` must be above 0"
    if len(instance.prefixes or ()) > PREFIX_MARKS_MAX:
        return f"`instance.prefixes` must have at most {PREFIX_MARKS_MAX} marks"
    return ""


class RouterService(router_pb2_grpc.RouterServicer):
    """Owns registry and canary. `run()` watches over both; `close()` lets watchers go."""

    def __init__(self, settings: RouterSettings, clock: Clock, tracing: Tracing) -> None:
        self._lease_s = settings.lease_ms / 1000
        self._watchers_max = settings.watchers_max
        self._clock = clock
        self._tracing = tracing
        self._registry = Registry(self._lease_s, settings.instances_max)
        self._canary = CanaryDesk()
        self._start_id = secrets.token_hex(8)
        self._watchers = 0
        self._closing = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Mark members whose lease ended, soon after it did, and judge the canary as often."""
        while True:
            await asyncio.sleep(self._lease_s / EXPIRY_CHECKS_PER_LEASE)
            lapsed = self._registry.expire(self._clock.monotonic())
            if self._canary.judge(self._longest_pause_ms(), self._clock.wall_ms()):
                _log.warning("the canary is rolled back: %s", self._canary.state.reason)
                self._wake()
            elif lapsed:
                self._wake()

    def _longest_pause_ms(self) -> float:
        """The highest p99 of pauses that a canary instance reports."""
        canaries = (i for i in self._registry.snapshot().instances if i.canary)
        return max((i.load.pause_p99_ms for i in canaries if i.load), default=0.0)

    def close(self) -> None:
        """End every `Watch` call, so that a drain does not wait for them."""
        self._closing = True
        self._wake()

    async def Register(  # noqa: N802 - the name of the call
        self, request: router_pb2.RegisterRequest, context: Context
    ) -> router_pb2.RegisterResponse:
        """Take or renew a lease, or give it up."""
        instance = instance_from_pb(request.instance)
        if request.leaving:
            changed = self._registry.leave(instance.id, instance.start_id)
        else:
            fault = _fault(instance)
            if fault:
                await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, fault)
            try:
                changed = self._registry.register(instance, self._clock.monotonic())
            except RegistryFullError:
                await _refuse(
                    context, grpc.StatusCode.RESOURCE_EXHAUSTED, "no room for another instance"
                )
        if changed:
            self._wake()
        return router_pb2.RegisterResponse(
            lease_ms=round(self._lease_s * 1000), router_start_id=self._start_id
        )

    async def Watch(  # noqa: N802
        self, request: router_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[router_pb2.Membership]:
        """A snapshot at once, at each change, and twice a lease; a slow reader skips to the newest."""
        if self._watchers >= self._watchers_max:
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watchers")
        self._watchers += 1
        _log.info("%s watches", request.watcher or "somebody")
        sent: dict[str, frozenset[int]] = {}
        try:
            while not self._closing:
                changed = self._changed
                yield self._membership(sent)
                await asyncio.sleep(SNAPSHOT_GAP_S)
                try:
                    async with asyncio.timeout(self._lease_s / SIGNS_OF_LIFE_PER_LEASE):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._watchers -= 1

    async def Route(  # noqa: N802
        self, request: router_pb2.RouteRequest, context: Context
    ) -> router_pb2.RouteResponse:
        """The instance for a key, by the rule that gateways use."""
        hashed = affinity_hash(request.user, request.method)
        key = RouteKey(
            user=request.user,
            method=request.method,
            model=request.model,
            instance_class=request.instance_class,
            exclude=frozenset(request.exclude),
            canary=wants_canary(self._canary.state, hashed, asked=request.canary),
        )
        metadata = context.invocation_metadata() or ()
        parent = next((str(value) for name, value in metadata if name == "traceparent"), None)
        span = self._tracing.start(Span.ROUTE, parent, kind="server")
        self._registry.expire(self._clock.monotonic())
        choice = choose_instance(self._registry.snapshot().instances, key)
        if choice.instance is None:
            span.end(error=choice.outcome.value)
            await self._refuse_route(choice, context)
        span.set({Attribute.INSTANCE: choice.instance.id})
        span.end()
        return router_pb2.RouteResponse(instance=instance_to_pb(choice.instance))

    async def _refuse_route(self, choice: Choice, context: Context) -> NoReturn:
        if choice.outcome is Outcome.MODEL_UNKNOWN:
            await _refuse(context, grpc.StatusCode.NOT_FOUND, "no instance serves that model")
        await _refuse(context, grpc.StatusCode.UNAVAILABLE, "no instance is free for that now")

    async def ReportCanary(  # noqa: N802
        self, request: router_pb2.ReportCanaryRequest, _context: Context
    ) -> router_pb2.ReportCanaryResponse:
        """Take a gateway's counts, and the state from it if this router does not know it yet."""
        gateway = request.gateway[:ID_LENGTH_MAX]
        known, counts = canary_from_pb(request.state), counts_from_pb(request.counts)
        if self._canary.report(gateway, known, counts):
            self._wake()
        return router_pb2.ReportCanaryResponse()

    async def ControlCanary(  # noqa: N802
        self, request: router_pb2.ControlCanaryRequest, context: Context
    ) -> router_pb2.ControlCanaryResponse:
        """Change the canary's share, or stop it, and say how things stand."""
        action = request.WhichOneof("action")
        if action == "share" and request.share > SHARE_MAX:
            await _refuse(
                context, grpc.StatusCode.INVALID_ARGUMENT, f"`share` must be 0 to {SHARE_MAX}"
            )
        if action == "share":
            self._canary.run(request.share, self._clock.wall_ms())
        elif action == "stop":
            self._canary.roll_back(request.stop[:REASON_LENGTH_MAX], self._clock.wall_ms())
        if action is not None:
            state = self._canary.state
            _log.warning(
                "the canary is %s, with %g %% of keys", state.phase.value, state.share / 100
            )
            self._wake()
        return router_pb2.ControlCanaryResponse(
            state=canary_to_pb(self._canary.state),
            counts=counts_to_pb(self._canary.counts()),
            instances=[i.id for i in self._registry.snapshot().instances if i.canary],
        )

    def _membership(self, sent: dict[str, frozenset[int]]) -> router_pb2.Membership:
        """A snapshot for a watcher who has been `sent` these prefixes; they are brought up to date."""
        now = self._clock.monotonic()
        snapshot = self._registry.snapshot()
        instances = []
        for member in snapshot.members:
            instance, marks = member.instance, member.instance.prefixes or frozenset()
            news = marks if sent.get(instance.id) != marks else None
            sent[instance.id] = marks
            age_ms = round((now - member.reported_at) * 1000)
            instances.append(instance_to_pb(replace(instance, prefixes=news), age_ms))
        for gone in sent.keys() - {instance.id for instance in instances}:
            del sent[gone]
        return router_pb2.Membership(
            router_start_id=self._start_id,
            revision=snapshot.revision,
            instances=instances,
            lease_ms=round(self._lease_s * 1000),
            canary=canary_to_pb(self._canary.state),
        )

    def _wake(self) -> None:
        # Each waiter holds the event it waits for, so the old one may be set and dropped.
        self._changed.set()
        self._changed = asyncio.Event()
