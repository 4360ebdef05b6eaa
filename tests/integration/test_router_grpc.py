"""Register, Watch and Route over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mesh.membership import Instance, Load
from mesh.rpc.channel import open_channel
from mesh.rpc.convert import instance_to_pb
from mesh.rpc.secret import secret_metadata
from router.policy.scoring import RouteKey, choose_instance
from seedance.v2 import router_pb2, router_pb2_grpc
from tests.support.router_process import running_router
from tests.support.waiting import SURELY_S

A = Instance("a", "127.0.0.1:1", ("m",), start_id="1")
SECRET = "the mesh's own"  # noqa: S105 - of this test
B = Instance("b", "127.0.0.1:2", ("m",), start_id="1")


@pytest.fixture
async def stub() -> AsyncIterator[router_pb2_grpc.RouterStub]:
    async with (
        running_router(lease_ms=400, watchers_max=2) as address,
        open_channel(address) as channel,
    ):
        yield router_pb2_grpc.RouterStub(channel)


def _registration(instance: Instance, leaving: bool = False) -> router_pb2.RegisterRequest:
    return router_pb2.RegisterRequest(instance=instance_to_pb(instance), leaving=leaving)


async def _until_ids(call: object, wanted: list[str]) -> router_pb2.Membership:
    async with asyncio.timeout(SURELY_S):
        while True:
            snapshot = await call.read()  # type: ignore[attr-defined]
            if [i.id for i in snapshot.instances] == wanted:
                return snapshot


async def test_watch_sees_joining_and_leaving(stub: router_pb2_grpc.RouterStub) -> None:
    """A watcher gets a snapshot at once, then each change, with the revision rising."""
    call = stub.Watch(router_pb2.WatchRequest(watcher="test"))
    try:
        empty = await _until_ids(call, [])
        answer = await stub.Register(_registration(A))
        assert answer.lease_ms == 400
        joined = await _until_ids(call, ["a"])
        assert joined.router_start_id == answer.router_start_id == empty.router_start_id
        assert joined.revision > empty.revision
        await stub.Register(_registration(A, leaving=True))
        await _until_ids(call, [])
    finally:
        call.cancel()


async def test_silence_ends_the_lease(stub: router_pb2_grpc.RouterStub) -> None:
    """CASES 78: of an instance that stops reporting watchers hear that nothing is known of it."""
    await stub.Register(_registration(replace(A, load=Load(running=3))))
    call = stub.Watch(router_pb2.WatchRequest())
    try:
        assert (await _until_ids(call, ["a"])).instances[0].HasField("load")
        async with asyncio.timeout(SURELY_S):
            while not (known := (await call.read()).instances[0]).lapsed:
                continue
        assert not known.HasField("load")
        assert (await stub.Route(router_pb2.RouteRequest(user="ann"))).instance.id == "a"
        await stub.Register(_registration(B))
        assert (await stub.Route(router_pb2.RouteRequest(user="ann"))).instance.id == "b"
    finally:
        call.cancel()


async def test_prefixes_are_sent_when_they_are_news(stub: router_pb2_grpc.RouterStub) -> None:
    """A watcher hears of an instance's cached beginnings once, and again when they have changed."""
    await stub.Register(_registration(replace(A, prefixes=frozenset({1, 2}))))
    call = stub.Watch(router_pb2.WatchRequest())
    try:
        heard = [await call.read()]
        await stub.Register(_registration(replace(A, prefixes=frozenset({1, 2}), load=Load(1))))
        heard.append(await call.read())
        await stub.Register(_registration(replace(A, prefixes=frozenset({2}))))
        heard.append(await call.read())
        prefixes = [snapshot.instances[0].prefixes for snapshot in heard]
        assert [set(p.marks) for p in prefixes] == [{1, 2}, set(), {2}]
        assert not heard[1].instances[0].HasField("prefixes")
    finally:
        call.cancel()


async def test_signs_of_life(stub: router_pb2_grpc.RouterStub) -> None:
    """Without any change a snapshot still comes within each lease."""
    call = stub.Watch(router_pb2.WatchRequest())
    try:
        async with asyncio.timeout(2):
            revisions = [(await call.read()).revision for _ in range(4)]
        assert len(set(revisions)) == 1
    finally:
        call.cancel()


async def test_route_decides_as_the_pure_rule(stub: router_pb2_grpc.RouterStub) -> None:
    """The service names the instance that a gateway would have chosen itself."""
    for instance in (A, B):
        await stub.Register(_registration(instance))
    for user in ("ann", "bob", "eve", "joe"):
        request = router_pb2.RouteRequest(user=user, method="Generate", model="m")
        answer = await stub.Route(request)
        local = choose_instance([A, B], RouteKey(user, "Generate", "m"))
        assert local.instance is not None
        assert answer.instance.id == local.instance.id


async def test_load_reaches_the_watchers(stub: router_pb2_grpc.RouterStub) -> None:
    """A load report is a change, and says how old it is."""
    await stub.Register(_registration(A))
    call = stub.Watch(router_pb2.WatchRequest())
    try:
        await _until_ids(call, ["a"])
        loaded = Instance(A.id, A.address, A.models, load=Load(running=3), start_id="1")
        await stub.Register(_registration(loaded))
        snapshot = await _until_ids(call, ["a"])
        assert snapshot.instances[0].load.running == 3
        assert snapshot.instances[0].load_age_ms < 400
    finally:
        call.cancel()


@pytest.mark.parametrize(
    "bad",
    [
        Instance("", "127.0.0.1:1", ("m",)),
        Instance("a", "nowhere", ("m",)),
        Instance("a", "127.0.0.1:1", ()),
        Instance("a", "127.0.0.1:1", ("m",), weight=float("nan")),
        Instance("a", "127.0.0.1:1", ("m",), weight=-1.0),
    ],
)
async def test_bad_registration_is_refused(stub: router_pb2_grpc.RouterStub, bad: Instance) -> None:
    """A registration that nobody could use is told what is wrong, by field."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Register(_registration(bad))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "`instance." in (refused.value.details() or "")


async def test_route_without_anybody(stub: router_pb2_grpc.RouterStub) -> None:
    """Nobody serves the model: NOT_FOUND; served, but excluded: UNAVAILABLE."""
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await stub.Route(router_pb2.RouteRequest(user="ann", model="m"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    await stub.Register(_registration(A))
    with pytest.raises(grpc.aio.AioRpcError) as busy:
        await stub.Route(router_pb2.RouteRequest(user="ann", model="m", exclude=["a"]))
    assert busy.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_watchers_are_bounded(stub: router_pb2_grpc.RouterStub) -> None:
    """One watcher too many is refused, and a place is free again once one leaves."""
    calls = [stub.Watch(router_pb2.WatchRequest()) for _ in range(2)]
    try:
        for call in calls:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Watch(router_pb2.WatchRequest()).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        for call in calls:
            call.cancel()


async def test_only_who_shows_the_secret_gives_orders() -> None:
    """With a secret no call is answered without it, or with another; health is told to all."""
    async with running_router(mesh_secret=SECRET) as address, open_channel(address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        calls = (
            lambda shown: stub.Register(_registration(A), metadata=shown),
            lambda shown: stub.ControlCanary(
                router_pb2.ControlCanaryRequest(share=100), metadata=shown
            ),
            lambda shown: stub.ReportCanary(router_pb2.ReportCanaryRequest(), metadata=shown),
            lambda shown: stub.Route(router_pb2.RouteRequest(), metadata=shown),
            lambda shown: stub.Watch(router_pb2.WatchRequest(), metadata=shown).read(),
        )
        for call in calls:
            for shown in ((), secret_metadata("another")):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(shown)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert "SEEDANCE_MESH_SECRET" in (refused.value.details() or "")
        right = secret_metadata(SECRET)
        await stub.Register(_registration(A), metadata=right)
        watch = stub.Watch(router_pb2.WatchRequest(), metadata=right)
        await _until_ids(watch, ["a"])
        watch.cancel()
        state = (await stub.ControlCanary(router_pb2.ControlCanaryRequest(), metadata=right)).state
        assert state.share == 0  # nobody's order was heard
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
