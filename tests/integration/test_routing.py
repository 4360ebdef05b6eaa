"""Where streams go, with a real router and real calls: prefixes, cut ways, canaries, affinity."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.affinity import AFFINITY_COOKIE
from gateway.upstream.base import Open, Where
from gateway.upstream.membership import RouterWatch
from gateway.upstream.pool import InstancePool
from mesh.canary import CanaryPhase
from mesh.clock import SystemClock
from mesh.membership import Instance, Load
from mesh.prefixes import prefix_marks
from mesh.rpc.channel import open_channel
from mesh.rpc.convert import canary_from_pb, instance_to_pb
from seedance.protocol.errors import ErrorCode
from seedance.protocol.request import ChatMessage, GenerateRequest
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import router_pb2, router_pb2_grpc
from tests.support.fake_inference import FakeInstance, running_instance
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import running_gateway, wire
from tests.support.instance import SECRET, eventually
from tests.support.instance import running_instance as running_engine
from tests.support.recording_listener import RecordingListener
from tests.support.router_process import running_router
from tests.support.scripts import script
from tests.support.waiting import SURELY_S, wait_until

OPEN = Open("s/a", 1, GenerateRequest(prompt="hi"), "tenant", credit=4)
USERS = [Where(f"user-{n}") for n in range(40)]


@contextlib.asynccontextmanager
async def _gateway(router: str) -> AsyncIterator[InstancePool]:
    pool = InstancePool(
        RouterWatch(router, "test", SystemClock()), SystemClock(), mesh_secret=SECRET
    )
    running = asyncio.create_task(pool.run())
    try:
        yield pool
    finally:
        running.cancel()
        await asyncio.wait([running])


def _member(instance: FakeInstance, **fields: object) -> Instance:
    return Instance(instance.name, instance.address, ("m",), start_id="1", **fields)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def _stub(router: str) -> AsyncIterator[router_pb2_grpc.RouterStub]:
    async with open_channel(router) as channel:
        yield router_pb2_grpc.RouterStub(channel)


async def _register(stub: router_pb2_grpc.RouterStub, *members: Instance) -> None:
    for member in members:
        await stub.Register(router_pb2.RegisterRequest(instance=instance_to_pb(member)))


def _chosen(pool: InstancePool) -> set[str]:
    return {pool.choose(where) for where in USERS} if pool.ready() else set()


async def test_a_cut_way_to_the_router_stops_nothing() -> None:
    """CASES 78: instances whose reports do not arrive get new streams still, many leases long."""
    async with (
        running_instance("i0") as one,
        running_instance("i1") as two,
        running_router(lease_ms=100) as router,
        _stub(router) as stub,
        _gateway(router) as pool,
    ):
        await _register(stub, _member(one, load=Load(running=2)), _member(two, load=Load()))
        await wait_until(lambda: _chosen(pool) == {"i0", "i1"})
        revision = 0
        call = stub.Watch(router_pb2.WatchRequest())
        async with asyncio.timeout(20):
            while revision < 20:
                snapshot = await call.read()
                revision += all(instance.lapsed for instance in snapshot.instances)
                assert _chosen(pool) == {"i0", "i1"}
        call.cancel()
        listener = RecordingListener()
        pool.open(pool.choose(USERS[0]), OPEN, listener)
        await wait_until(lambda: one.calls[-1].frames or two.calls[-1].frames)
        # Who has really gone is known by its connection, report or no report.
        await two.stop()
        await wait_until(lambda: _chosen(pool) == {"i0"})


async def test_who_has_the_beginning_gets_the_rest() -> None:
    """An instance reports what it has computed; another user's same prompt goes there, too."""
    async with (
        running_router(lease_ms=300) as router,
        running_engine(instance_id="i0", router=router),
        running_engine(instance_id="i1", router=router),
        _gateway(router) as pool,
    ):
        await wait_until(lambda: len(_chosen(pool)) == 2)
        content = script([b"x"]).replace("{", "{" + " " * 4_000, 1)
        request = GenerateRequest(messages=(ChatMessage("user", content),))
        marks = prefix_marks("tenant", request)
        assert len(marks) >= 7
        ann = Where("ann", prefix=marks)
        home = pool.choose(ann)
        listener = RecordingListener()
        pool.open(home, Open("s/a", 1, request, "tenant"), listener)
        await wait_until(lambda: "done" in listener.heard)
        await wait_until(lambda: list(pool._chooser.prefixes.holders(marks)))
        others = [w for w in USERS if pool.choose(w) != home]
        assert [pool.choose(replace(w, prefix=marks)) for w in others[:2]] == [home] * 2
        foreign = prefix_marks("another tenant", request)
        assert pool.choose(replace(others[0], prefix=foreign)) != home
        again = RecordingListener()
        pool.open(
            pool.choose(replace(USERS[0], prefix=marks)), Open("s/b", 1, request, "tenant"), again
        )
        await wait_until(lambda: "done" in again.heard)
        assert again.usage is not None
        assert again.usage.cached_tokens > 3_500


async def _answer_everything(instance: FakeInstance, answer: pb.ServerFrame) -> None:
    """Give every opening that one answer."""
    answered: set[tuple[int, int]] = set()
    while True:
        for number, call in enumerate(instance.calls):
            for frame in call.of_kind("open"):
                if (number, frame.stream_id) not in answered:
                    answered.add((number, frame.stream_id))
                    answer.stream_id = frame.stream_id
                    call.send(pb.StreamResponse(frames=[answer]))
        await asyncio.sleep(0.005)


async def test_a_canary_is_judged_by_what_gateways_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set to half of the keys, its failures reach the router; the verdict reaches all gateways."""
    monkeypatch.setattr("gateway.upstream.membership.REPORT_EVERY_S", 0.05)
    async with (
        running_instance("old") as old,
        running_instance("new") as new,
        running_router(lease_ms=2_000) as router,
        _stub(router) as stub,
        _gateway(router) as pool,
        _gateway(router) as other,
        asyncio.TaskGroup() as tasks,
    ):
        error = pb.Error(code=ErrorCode.INTERNAL.value, message="failed")
        players = [
            tasks.create_task(_answer_everything(old, pb.ServerFrame(done=pb.Done()))),
            tasks.create_task(_answer_everything(new, pb.ServerFrame(error=error))),
        ]
        await _register(stub, _member(old), _member(new, canary=True))
        await wait_until(lambda: _chosen(pool) == _chosen(other) == {"old"})
        await stub.ControlCanary(router_pb2.ControlCanaryRequest(share=5_000))
        await wait_until(lambda: _chosen(pool) == _chosen(other) == {"old", "new"})
        for _ in range(100):
            if pool._source.canary.phase is not CanaryPhase.RUNNING:
                break
            for where in USERS:
                pool.open(pool.choose(where), OPEN, RecordingListener())
            await asyncio.sleep(0.05)
        assert pool._source.canary.phase is CanaryPhase.ROLLED_BACK
        await wait_until(lambda: _chosen(pool) == _chosen(other) == {"old"})
        answer = await stub.ControlCanary(router_pb2.ControlCanaryRequest())
        assert canary_from_pb(answer.state).reason.startswith("error rate")
        assert list(answer.instances) == ["new"]
        for player in players:
            player.cancel()


async def test_a_pausing_canary_is_rolled_back() -> None:
    """A canary whose event loop stands still over 50 ms is out, whatever its streams say."""
    async with running_router(lease_ms=500) as router, _stub(router) as stub:
        member = Instance("new", "127.0.0.1:1", ("m",), start_id="1", canary=True)
        await _register(stub, replace(member, load=Load(pause_p99_ms=50)))
        answer = await stub.ControlCanary(router_pb2.ControlCanaryRequest(share=100))
        assert canary_from_pb(answer.state).phase is CanaryPhase.RUNNING
        await _register(stub, replace(member, load=Load(pause_p99_ms=80)))
        async with asyncio.timeout(SURELY_S):
            while canary_from_pb(answer.state).phase is CanaryPhase.RUNNING:
                await asyncio.sleep(0.01)
                answer = await stub.ControlCanary(router_pb2.ControlCanaryRequest())
        assert canary_from_pb(answer.state).reason.startswith("pauses")


async def test_a_new_router_is_told_of_the_roll_back() -> None:
    """A router that starts without memory does not begin the canary again."""
    async with contextlib.AsyncExitStack() as stack:
        instance = await stack.enter_async_context(running_instance("old"))
        async with running_router(lease_ms=300) as router, _stub(router) as stub:
            pool = await stack.enter_async_context(_gateway(router))
            await _register(stub, _member(instance))
            await stub.ControlCanary(router_pb2.ControlCanaryRequest(stop="by hand"))
            await wait_until(lambda: pool._source.canary.reason == "by hand")
        async with (
            running_router(int(router.rpartition(":")[2]), lease_ms=300),
            _stub(router) as stub,
        ):

            async def learnt() -> bool:
                answer = await stub.ControlCanary(router_pb2.ControlCanaryRequest())
                return canary_from_pb(answer.state).reason == "by hand"

            await eventually(learnt, within_s=10)


async def test_two_routers_decide_alike() -> None:
    """CASES 70: given the same reports they name the same instances, without a word to each other."""
    members = [
        Instance(f"i{n}", f"127.0.0.1:{n + 1}", ("m",), load=Load(running=5 * n)) for n in range(4)
    ]
    async with (
        running_router() as one,
        running_router() as two,
        _stub(one) as first,
        _stub(two) as second,
    ):
        await _register(first, *members)
        await _register(second, *members[::-1])
        for where in USERS:
            request = router_pb2.RouteRequest(user=where.user, method="Generate", model="m")
            named = [(await stub.Route(request)).instance.id for stub in (first, second)]
            assert named[0] == named[1]


async def test_a_socket_is_given_its_affinity() -> None:
    """The upgrade's answer sets the cookie, and whoever brings it is not given another."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        async with wire(gateway.url) as client:
            response = client.connection.response
            assert response is not None
            cookie = response.headers["Set-Cookie"].partition(";")[0]
            assert cookie.startswith(f"{AFFINITY_COOKIE}=")
        async with wire(gateway.url, additional_headers={"Cookie": cookie}) as client:
            response = client.connection.response
            assert response is not None
            assert "Set-Cookie" not in response.headers
