"""The Router servicer: translates protobuf to registry and policy, and wakes the watchers."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator
from typing import NoReturn

import grpc
import grpc.aio

from mesh.clock import Clock
from mesh.membership import Instance
from mesh.rpc.convert import instance_from_pb, instance_to_pb
from mesh.telemetry.names import Attribute, Span
from mesh.telemetry.tracing import Tracing
from router.config import RouterSettings
from router.policy.scoring import Choice, Outcome, RouteKey, choose_instance
from router.registry import Registry, RegistryFullError
from seedance.v2 import router_pb2, router_pb2_grpc

__all__ = ["RouterService"]

EXPIRY_CHECKS_PER_LEASE = 10
SIGNS_OF_LIFE_PER_LEASE = 2
# However often members report, a watcher gets at most one snapshot in this time: the newest.
SNAPSHOT_GAP_S = 0.02
ID_LENGTH_MAX = 128
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
    return ""


class RouterService(router_pb2_grpc.RouterServicer):
    """Owns the registry. `run()` expires leases until cancelled; `close()` lets watchers go."""

    def __init__(self, settings: RouterSettings, clock: Clock, tracing: Tracing) -> None:
        self._lease_s = settings.lease_ms / 1000
        self._watchers_max = settings.watchers_max
        self._clock = clock
        self._tracing = tracing
        self._registry = Registry(self._lease_s, settings.instances_max)
        self._start_id = secrets.token_hex(8)
        self._watchers = 0
        self._closing = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Take out members whose lease ended, soon after it did."""
        while True:
            await asyncio.sleep(self._lease_s / EXPIRY_CHECKS_PER_LEASE)
            if self._registry.expire(self._clock.monotonic()):
                self._wake()

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
        try:
            while not self._closing:
                changed = self._changed
                yield self._membership()
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
        key = RouteKey(
            user=request.user,
            method=request.method,
            model=request.model,
            instance_class=request.instance_class,
            exclude=frozenset(request.exclude),
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

    def _membership(self) -> router_pb2.Membership:
        now = self._clock.monotonic()
        snapshot = self._registry.snapshot()
        return router_pb2.Membership(
            router_start_id=self._start_id,
            revision=snapshot.revision,
            instances=[
                instance_to_pb(m.instance, round((now - m.reported_at) * 1000))
                for m in snapshot.members
            ],
            lease_ms=round(self._lease_s * 1000),
        )

    def _wake(self) -> None:
        # Each waiter holds the event it waits for, so the old one may be set and dropped.
        self._changed.set()
        self._changed = asyncio.Event()
