"""The pool over real gRPC: membership, shared calls, breaks and recovery."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.upstream.base import (
    Attach,
    NoInstanceError,
    Open,
    PressureLevel,
    StreamListener,
    Where,
)
from gateway.upstream.membership import MembershipSource, RouterWatch, StaticList
from gateway.upstream.pool import InstancePool
from mesh.clock import SystemClock
from mesh.membership import Instance
from mesh.rpc.channel import MESH_SECRET_KEY, open_channel
from mesh.rpc.convert import instance_to_pb
from seedance.protocol.errors import ErrorCode
from seedance.protocol.request import GenerateRequest
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import router_pb2, router_pb2_grpc
from tests.support.fake_inference import FakeInstance, running_instance
from tests.support.recording_listener import RecordingListener
from tests.support.router_process import running_router
from tests.support.waiting import wait_until

OPEN = Open("s/a", 1, GenerateRequest(prompt="hi"), "tenant", traceparent="tp", credit=4)
ANN = Where(user="ann")
SECRET = "s3"  # noqa: S105 - of this test


@contextlib.asynccontextmanager
async def _running(source: MembershipSource, calls: int = 1) -> AsyncIterator[InstancePool]:
    pool = InstancePool(source, SystemClock(), mesh_secret=SECRET, calls=calls)
    running = asyncio.create_task(pool.run())
    try:
        yield pool
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()


@contextlib.asynccontextmanager
async def _static(*instances: FakeInstance, calls: int = 1) -> AsyncIterator[InstancePool]:
    async with _running(StaticList([i.address for i in instances]), calls) as pool:
        names = {i.name for i in instances}
        await wait_until(lambda: _usable(pool) == names)
        yield pool


@contextlib.asynccontextmanager
async def _pair() -> AsyncIterator[tuple[InstancePool, FakeInstance, FakeInstance]]:
    async with (
        running_instance("i0") as one,
        running_instance("i1") as two,
        _static(one, two) as pool,
    ):
        yield pool, one, two


@pytest.fixture
async def instance() -> AsyncIterator[FakeInstance]:
    async with running_instance("i0") as running:
        yield running


def _token(stream_id: int, text: str) -> pb.StreamResponse:
    columns = pb.TokenColumns(
        stream_ids=[stream_id],
        token_counts=[1],
        byte_lengths=[len(text.encode())],
        offsets=[0],
        token_indexes=[0],
        token_ids=[7],
        text=text.encode(),
    )
    return pb.StreamResponse(tokens=columns)


async def test_one_call_carries_all_streams(instance: FakeInstance) -> None:
    """Opens of one turn share one call and one message, and the answers find their streams."""
    async with _static(instance) as pool:
        assert pool.models() == ["alias", "m"]
        listeners = [RecordingListener() for _ in range(20)]
        for listener in listeners:
            pool.open(pool.choose(ANN), OPEN, listener)
        call = await instance.call()
        ids = await call.opened(count=20)
        assert len(instance.calls) == len(call.requests) == 1
        assert call.metadata[MESH_SECRET_KEY] == SECRET
        assert call.frames[0].open.credit == 4
        for n, stream_id in enumerate(ids):
            call.send(_token(stream_id, str(n)))
        await wait_until(lambda: all(listener.heard for listener in listeners))
        assert [listener.text for listener in listeners] == [str(n) for n in range(20)]


async def test_calls_are_shared_out(instance: FakeInstance) -> None:
    """With several calls to an instance its streams are spread over them."""
    async with _static(instance, calls=2) as pool:
        for _ in range(6):
            pool.open("i0", OPEN, RecordingListener())
        await wait_until(lambda: sum(len(c.frames) for c in instance.calls) == 6)
        assert [len(call.frames) for call in instance.calls] == [3, 3]


class _Reopening(RecordingListener):
    """Asks for another instance in the moment it hears of the break."""

    def __init__(self, pool: InstancePool) -> None:
        super().__init__()
        self._pool = pool
        self.chosen = ""

    def on_broken(self) -> None:
        super().on_broken()
        self.chosen = self._pool.choose(ANN)


async def test_a_dead_instance_is_out_at_once() -> None:
    """When a call breaks, all its streams hear it, and by then nobody is sent there any more."""
    async with _pair() as (pool, one, two):
        first = pool.choose(ANN)
        victim, survivor = (one, two) if first == "i0" else (two, one)
        listeners = [_Reopening(pool) for _ in range(3)]
        handles = [pool.open(first, OPEN, listener) for listener in listeners]
        await (await victim.call()).opened(count=3)
        await victim.stop()
        await wait_until(lambda: all(listener.heard for listener in listeners))
        assert [listener.heard for listener in listeners] == [["broken"]] * 3
        assert {listener.chosen for listener in listeners} == {survivor.name}
        handles[0].add_credit(1)
        handles[0].cancel()
        handles[0].release()
        await victim.start()
        await wait_until(lambda: pool.choose(ANN) == victim.name)


async def test_a_call_that_ends_well_is_broken_too(instance: FakeInstance) -> None:
    """An instance that ends the call while streams live has broken them; a new call is made."""
    async with _static(instance) as pool:
        listener = RecordingListener()
        pool.open("i0", OPEN, listener)
        call = await instance.call()
        await call.opened()
        call.end()
        await wait_until(lambda: listener.heard == ["broken"])
        await wait_until(lambda: len(instance.calls) == 2 and pool.ready())


async def test_nonsense_breaks_the_call_not_the_gateway(instance: FakeInstance) -> None:
    """Columns that do not fit break that call's streams; the pool goes on."""
    async with _static(instance) as pool:
        listener = RecordingListener()
        pool.open("i0", OPEN, listener)
        call = await instance.call()
        await call.opened()
        call.send(pb.StreamResponse(tokens=pb.TokenColumns(stream_ids=[1])))
        await wait_until(lambda: listener.heard == ["broken"])
        await wait_until(lambda: call.cancelled)
        await wait_until(pool.ready)


async def test_unknown_instance_is_broken_at_the_next_turn(instance: FakeInstance) -> None:
    """Attaching to nobody is heard as a break, never within the call and not after `abandon`."""
    async with _static(instance) as pool:
        heard, silent = RecordingListener(), RecordingListener()
        handle = pool.attach("gone", Attach("s/a", 2, 5), heard)
        pool.attach("gone", Attach("s/a", 2, 5), silent).abandon()
        assert handle.instance == "gone"
        assert heard.heard == []
        await wait_until(lambda: heard.heard == ["broken"])
        assert silent.heard == []


async def test_closing_leaves_nothing(instance: FakeInstance) -> None:
    """CASES 33, 35: when the pool stops, its calls are cancelled at the instance and no task stays."""
    before = asyncio.all_tasks()
    async with _static(instance) as pool:
        listener = RecordingListener()
        pool.open("i0", OPEN, listener)
        call = await instance.call()
        await call.opened()
    await wait_until(lambda: call.cancelled)
    assert listener.heard == ["broken"]

    def leftover() -> set[asyncio.Task[object]]:
        return {t for t in asyncio.all_tasks() - before if "Server" not in repr(t)}

    await wait_until(lambda: not leftover())


async def test_pressure_is_the_lowest_of_all() -> None:
    """One free instance is enough, and the full one is passed over while there is another."""
    async with _pair() as (pool, one, two):
        pause = pb.ServerFrame(pressure=pb.Pressure(level=pb.PRESSURE_LEVEL_PAUSE))
        (await one.call()).send(pb.StreamResponse(frames=[pause]))
        users = [Where(user=f"u{n}") for n in range(20)]
        await wait_until(lambda: {pool.choose(u) for u in users} == {"i1"})
        assert pool.pressure() is PressureLevel.NONE
        (await two.call()).send(pb.StreamResponse(frames=[pause]))
        await wait_until(lambda: pool.pressure() is PressureLevel.PAUSE)
        assert {pool.choose(u) for u in users} == {"i0", "i1"}


async def test_nobody_to_choose(instance: FakeInstance) -> None:
    """No such model: `model_not_found` with the served names; nobody there: `unavailable`."""
    async with _static(instance) as pool:
        with pytest.raises(NoInstanceError) as unknown:
            pool.choose(Where(user="ann", model="other"))
        assert unknown.value.code is ErrorCode.MODEL_NOT_FOUND
        assert "alias, m" in unknown.value.message
        with pytest.raises(NoInstanceError) as excluded:
            pool.choose(Where(user="ann", model="m", exclude=frozenset({"i0"})))
        assert excluded.value.code is ErrorCode.UNAVAILABLE
        await instance.stop()
        await wait_until(lambda: not pool.ready())
        with pytest.raises(NoInstanceError) as away:
            pool.choose(Where(user="ann", model="m"))
        assert away.value.code is ErrorCode.UNAVAILABLE
        assert away.value.retry_after_ms
        assert pool.models() == []
        assert pool.pressure() is PressureLevel.PAUSE


# ---------------------------------------------------------------- with a router


async def _register(router: str, instances: Sequence[Instance], leaving: bool = False) -> None:
    async with open_channel(router) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        for instance in instances:
            request = router_pb2.RegisterRequest(instance=instance_to_pb(instance), leaving=leaving)
            await stub.Register(request)


def _member(instance: FakeInstance, **fields: object) -> Instance:
    return Instance(instance.name, instance.address, ("m",), start_id="1", **fields)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def _registering(router: str, instance: FakeInstance) -> AsyncIterator[None]:
    async def keep() -> None:
        while True:
            await _register(router, [_member(instance)])
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(keep())
        yield
        keeping.cancel()


def _usable(pool: InstancePool) -> set[str]:
    return {member.instance.id for member in pool._usable_members()}


def _watch(router: str) -> RouterWatch:
    return RouterWatch(router, "test", SystemClock())


async def test_the_router_tells_who_is_there(instance: FakeInstance) -> None:
    """A registered instance is used; a draining one gets nothing new and keeps its streams."""
    async with running_router() as router, _running(_watch(router)) as pool:
        assert not pool.ready()
        await _register(router, [_member(instance)])
        await wait_until(pool.ready)
        listener = RecordingListener()
        pool.open(pool.choose(ANN), OPEN, listener)
        call = await instance.call()
        (stream_id,) = await call.opened()
        await _register(router, [_member(instance, draining=True)])
        await wait_until(lambda: not pool.ready())
        with pytest.raises(NoInstanceError):
            pool.choose(ANN)
        call.send(_token(stream_id, "x"))
        await wait_until(lambda: listener.text == "x")


async def test_live_streams_outlive_membership(instance: FakeInstance) -> None:
    """CASES 76: who left gets nothing new, and keeps the call until its last stream has ended."""
    async with running_router(lease_ms=300) as router, _running(_watch(router)) as pool:
        await _register(router, [_member(instance)])
        await wait_until(pool.ready)
        listener = RecordingListener()
        pool.open("i0", OPEN, listener)
        call = await instance.call()
        (stream_id,) = await call.opened()
        await _register(router, [_member(instance)], leaving=True)
        await wait_until(lambda: not pool.ready())
        call.send(_token(stream_id, "x"))
        await wait_until(lambda: listener.text == "x")
        done = pb.ServerFrame(stream_id=stream_id, done=pb.Done())
        call.send(pb.StreamResponse(frames=[done]))
        await wait_until(lambda: call.cancelled)
        assert listener.heard == ["tokens", "done"]


async def test_a_dead_router_stops_nothing(instance: FakeInstance) -> None:
    """With the router gone the pool goes on, also with new streams; a new router finds it watching."""
    async with contextlib.AsyncExitStack() as stack:
        async with running_router(lease_ms=300) as router:
            pool = await stack.enter_async_context(_running(_watch(router)))
            await _register(router, [_member(instance)])
            await wait_until(pool.ready)
        assert pool.choose(ANN) == "i0"
        listener: StreamListener = RecordingListener()
        pool.open("i0", OPEN, listener)
        await (await instance.call()).opened()
        port = int(router.rpartition(":")[2])
        async with (
            running_router(port, lease_ms=300),
            running_instance("i1") as second,
            _registering(router, second),
        ):
            await wait_until(lambda: _usable(pool) == {"i0", "i1"})
            # The first has not registered again within two leases: it is out then.
            await wait_until(lambda: _usable(pool) == {"i1"})


async def test_a_new_address_is_a_new_connection(instance: FakeInstance) -> None:
    """An instance that comes back elsewhere under its id is reached at its new address."""
    async with running_router() as router, _running(_watch(router)) as pool:
        await _register(router, [_member(instance)])
        await wait_until(pool.ready)
        async with running_instance("i0") as moved:
            await _register(router, [_member(moved)])
            await wait_until(lambda: moved.calls)
            await wait_until(pool.ready)
            pool.open("i0", OPEN, RecordingListener())
            await (await moved.call()).opened()
