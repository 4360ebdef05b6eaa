"""The pool with a real router and real instances, each a process: open, credit, cancel, kill, attach."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator

from gateway.upstream.base import Attach, Open, Where
from gateway.upstream.membership import RouterWatch
from gateway.upstream.pool import InstancePool
from mesh.clock import SystemClock
from seedance.protocol.request import ChatMessage, GenerateRequest
from tests.support.recording_listener import RecordingListener
from tests.support.router_process import running_router
from tests.support.service_process import ServiceProcess, running_service
from tests.support.waiting import wait_until

SECRET = "of-this-test"  # noqa: S105
ANN = Where(user="ann", model="script")
WORDS = [f"word{n} 😀 " for n in range(40)]
TEXT = "".join(WORDS)


def _request(dt_ms: float = 0) -> GenerateRequest:
    script = {
        "tokens_b64": [base64.b64encode(word.encode()).decode() for word in WORDS],
        "dt_ms": dt_ms,
    }
    return GenerateRequest(messages=(ChatMessage("user", json.dumps(script)),))


def _open(name: str, *, dt_ms: float = 0, **fields: object) -> Open:
    return Open(f"session/{name}", 1, _request(dt_ms), "tenant", **fields)  # type: ignore[arg-type]


def _engine(name: str, router: str) -> contextlib.AbstractAsyncContextManager[ServiceProcess]:
    flags = ("--engine", "script", "--instance-id", name, "--router", router)
    return running_service("inference", *flags, env={"SEEDANCE_MESH_SECRET": SECRET})


@contextlib.asynccontextmanager
async def _pool(router: str) -> AsyncIterator[InstancePool]:
    source = RouterWatch(router, "test", SystemClock())
    pool = InstancePool(source, SystemClock(), mesh_secret=SECRET)
    running = asyncio.create_task(pool.run())
    await wait_until(pool.ready)
    yield pool
    running.cancel()
    await asyncio.wait([running])


def _ids(listener: RecordingListener) -> tuple[int, ...]:
    return tuple(t for entry in listener.tokens for t in entry.token_ids)


async def test_streams_credit_and_cancel() -> None:
    """Many streams share a call, each whole; credit bounds what comes; cancel ends early."""
    async with running_router() as router, _engine("i0", router), _pool(router) as pool:
        whole = [RecordingListener() for _ in range(16)]
        for n, listener in enumerate(whole):
            pool.open(pool.choose(ANN), _open(f"w{n}"), listener)
        await wait_until(lambda: all("done" in listener.heard for listener in whole))
        assert {listener.text for listener in whole} == {TEXT}
        assert {listener.finish_reason for listener in whole} == {"stop"}
        assert all(_ids(listener) == tuple(range(40)) for listener in whole)

        slow = RecordingListener()
        handle = pool.open("i0", _open("credit", credit=5), slow)
        await wait_until(lambda: len(_ids(slow)) == 5)
        handle.add_credit(3)
        await wait_until(lambda: len(_ids(slow)) == 8)
        handle.cancel()
        await wait_until(lambda: slow.heard[-1] == "done")
        assert (slow.finish_reason, len(_ids(slow))) == ("cancelled", 8)
        handle.release()


async def test_a_killed_instance_is_continued_by_another() -> None:
    """`kill -9` of an instance: its stream breaks, and goes on exactly on the next one."""
    async with (
        running_router() as router,
        _engine("i0", router) as zero,
        _engine("i1", router) as one,
        _pool(router) as pool,
    ):
        await wait_until(lambda: len(pool._usable_members()) == 2)
        first = pool.choose(ANN)
        broken = RecordingListener()
        pool.open(first, _open("a", dt_ms=10), broken)
        await wait_until(lambda: len(_ids(broken)) >= 7)
        await (zero if first == "i0" else one).kill()
        await wait_until(lambda: broken.heard[-1] == "broken")
        second = pool.choose(Where("ann", "script", exclude=frozenset({first})))
        assert second != first
        went_on = RecordingListener()
        pool.open(second, _open("a", forced_prefix=_ids(broken)), went_on)
        await wait_until(lambda: went_on.heard[-1:] == ["done"])
        assert broken.text + went_on.text == TEXT
        assert went_on.accepted is not None
        assert went_on.accepted.from_token == len(_ids(broken))
        assert went_on.tokens[0].offset == len(broken.text.encode())


async def test_another_gateway_attaches() -> None:
    """A second pool takes a running generation over from any token index; the first hears its end."""
    async with running_router() as router, _engine("i0", router), _pool(router) as old:
        before = RecordingListener()
        old.open("i0", _open("a", credit=10), before)
        await wait_until(lambda: len(_ids(before)) == 10)
        async with _pool(router) as new:
            after = RecordingListener()
            new.attach("i0", Attach("session/a", 2, from_token=6), after)
            await wait_until(lambda: after.heard[-1:] == ["done"])
            assert _ids(after) == tuple(range(6, 40))
            assert after.text == "".join(WORDS[6:])
            assert after.tokens[0].offset == len("".join(WORDS[:6]).encode())
        await wait_until(lambda: before.heard[-1] == "error")


async def test_attach_to_what_is_unknown_is_an_error() -> None:
    """An instance that does not know the generation says so, and the gateway may open it anew."""
    async with running_router() as router, _engine("i0", router), _pool(router) as pool:
        listener = RecordingListener()
        pool.attach("i0", Attach("session/never", 2, 0), listener)
        await wait_until(lambda: listener.heard == ["error"])
        assert listener.error is not None
        assert listener.error.code == "unknown_stream"
