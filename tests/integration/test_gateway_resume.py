"""Resume with real sockets: on the same gateway and on another one with the same store (§4)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.store.base import SessionStore
from gateway.store.memory import MemoryStore
from gateway.store.redis import RedisStore
from mesh.clock import SystemClock
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import Wire, running_gateway, wire
from tests.support.valkey import TestStore
from tests.support.waiting import wait_until

PROMPT = " ".join(f"word{n}" for n in range(400))


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SessionStore]:
    clock = SystemClock()
    made: SessionStore
    if request.param == "memory":
        made = MemoryStore(clock, 120)
    else:
        valkey: TestStore = request.getfixturevalue("valkey")
        made = RedisStore(valkey.url, clock, 120, settle_s=0)
    yield made
    await made.close()


async def begin(client: Wire) -> None:
    """A stream `s` that has run out of window."""
    await client.send(type="generate", id="s", prompt=PROMPT)
    await client.until("accepted")
    while client.last_seq < 10:
        await client.read()


async def go_on(url: str, first: Wire) -> Wire:
    """Resume on a new connection and read to the end; everything seen by both together."""
    hello = first.seen[0]
    async with wire(url) as second:
        second.seen = first.seen
        await second.send(
            type="resume",
            session=hello["session"],
            token=hello["token"],
            last_seq=first.last_seq,
            offsets={"s": first.offset("s")},
        )
        resumed = await second.until("resumed")
        assert resumed["epoch"] == 2
        assert resumed["from_seq"] == first.last_seq + 1
        assert resumed["token"] == hello["token"]
        while not any(f["type"] == "done" for f in second.seen):
            await second.read()
            if "seq" in second.seen[-1] and second.last_seq % 8 == 0:
                await second.send(type="ack", seq=second.last_seq + 1)
        await second.send(type="ack", seq=second.last_seq + 1)
        await second.until("checkpoint")
    return second


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same gateway", "another gateway"])
async def test_a_cut_stream_goes_on(store: SessionStore, elsewhere: bool) -> None:
    """Byte for byte, each number once, one bill (CASES 62, 63)."""
    cluster = FakeCluster()
    async with (
        running_gateway(FakeUpstream(cluster), store) as one,
        running_gateway(FakeUpstream(cluster), store) as two,
    ):
        async with wire(one.url) as client:
            await begin(client)
            client.connection.transport.abort()
        client = await go_on((two if elsewhere else one).url, client)
        assert client.text("s") == PROMPT
        seqs = [f["seq"] for f in client.seen if "seq" in f]
        assert seqs == list(range(1, len(seqs) + 1))
        [end] = [f for f in client.seen if f["type"] == "done"]
        assert end["usage"]["completion_tokens"] == 400
        await wait_until(lambda: not one.registry.bills_waiting and not two.registry.bills_waiting)
        assert cluster.computed == 400, "attached, not computed again"


async def test_a_newer_connection_takes_over(store: SessionStore) -> None:
    """The older one is closed with 4409, here and on the other gateway (§4.6)."""
    cluster = FakeCluster()
    async with (
        running_gateway(FakeUpstream(cluster), store) as one,
        running_gateway(FakeUpstream(cluster), store) as two,
        wire(one.url) as client,
    ):
        await begin(client)
        after = await go_on(two.url, client)
        assert after.text("s") == PROMPT
        assert await client.closed() == 4409


async def test_an_unknown_session_is_expired(store: SessionStore) -> None:
    """`session_expired`, then 4410: open a new one."""
    async with running_gateway(FakeUpstream(FakeCluster()), store) as one, wire(one.url) as client:
        await client.send(
            type="resume", session="nobody", token="x" * 43, last_seq=4, offsets={"s": 9}
        )
        assert await client.closed() == 4410
        assert client.seen[-1]["code"] == "session_expired"
