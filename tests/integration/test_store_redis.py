"""A store that goes away, comes back, or loses its data, on a real server."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from gateway.store.base import (
    CommitResult,
    LogEntry,
    SessionOverError,
    SessionWrite,
    StoreLateError,
    StoreUnavailableError,
    StreamWrite,
    UsageEvent,
)
from gateway.store.belief import SETTLE_S, YOUNG_S
from gateway.store.names import new_session_id
from gateway.store.redis import RedisStore, _deadlines_key, _shard_of
from mesh.store import partitions_of
from mesh.store_link import LATE_S, open_link
from tests.support.clock import FakeClock
from tests.support.cluster import NODES, TestCluster
from tests.support.store_under_test import RESUME_TTL_S
from tests.support.valkey import TestStore, running_valkey

HASH = "5f" * 32
FIRST = SessionWrite("s1", 1, created=json.dumps({"token_hash": HASH}).encode())


@pytest.fixture
def server() -> Iterator[TestStore]:
    with running_valkey() as own:
        yield own


async def test_away_is_said_by_every_call(server: TestStore) -> None:
    """With no server each method raises `StoreUnavailableError`, and none hangs."""
    store = RedisStore(server.url, FakeClock(), RESUME_TTL_S)
    await store.commit([FIRST])
    server.stop()
    for call in (
        store.commit([FIRST]),
        store.claim("s1", HASH),
        store.raise_epoch("s1", 1, "a"),
        store.sweep(1),
        store.add_usage([UsageEvent("e", b"{}")]),
        store.put_ticket("t", b"v", 1),
        store.take_ticket("t"),
        store.note("n", b"v", 1),
        store.put_note("n", b"v", 1),
        store.find_note("n"),
        store.drop_note("n"),
        store.generation_mark(),
    ):
        with pytest.raises(StoreUnavailableError):
            await call
    await store.close()


async def test_silence_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes the connection and never answers is away when the time is up."""
    monkeypatch.setattr("mesh.store_link.COMMAND_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = RedisStore(f"redis://127.0.0.1:{port}/0", FakeClock(), RESUME_TTL_S)
        with pytest.raises(StoreUnavailableError):
            await store.commit([FIRST])
        await store.close()


async def test_back_is_not_believed_at_once(server: TestStore) -> None:
    """§4.8: writes go on at once; what it says of sessions counts after the settling time."""
    clock = FakeClock()
    store = RedisStore(server.url, clock, RESUME_TTL_S)
    await store.commit([FIRST])
    server.stop()
    with pytest.raises(StoreUnavailableError):
        await store.commit([FIRST])
    server.start()
    assert (await store.commit([SessionWrite("s1", 1)])).missing == {"s1"}
    with pytest.raises(StoreUnavailableError):
        await store.claim("s1", HASH)
    with pytest.raises(StoreUnavailableError):
        await store.sweep(1)
    await store.commit([FIRST])
    clock.advance(SETTLE_S)
    claimed = await store.claim("s1", HASH)
    assert claimed is not None
    assert claimed.epoch == 2
    await store.close()


async def test_an_emptied_store_expires_nobody(server: TestStore) -> None:
    """CASES 56: after a wipe an unknown session is `unavailable` until owners have written again."""
    clock = FakeClock()
    store = RedisStore(server.url, clock, RESUME_TTL_S)
    mark = await store.generation_mark()
    clock.advance(SETTLE_S)
    assert await store.claim("s1", HASH) is None
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    with pytest.raises(StoreUnavailableError):
        await store.claim("s1", HASH)
    assert await store.generation_mark() != mark
    clock.advance(SETTLE_S)
    assert await store.claim("s1", HASH) is None
    await store.close()


async def test_a_young_session_may_be_on_its_way(server: TestStore) -> None:
    """§4.8: a session that the store lacks is gone only when its first commit has had its time."""
    clock = FakeClock()
    store = RedisStore(server.url, clock, RESUME_TTL_S)
    await store.generation_mark()
    clock.advance(SETTLE_S)
    now_ms = store.now_ms() - round(SETTLE_S * 1000)
    young, old = new_session_id(now_ms), new_session_id(now_ms - round(YOUNG_S * 1000))
    with pytest.raises(StoreUnavailableError):
        await store.claim(young, HASH)
    assert await store.claim(old, HASH) is None
    await store.commit([SessionWrite(young, 1, closed=True)])
    with pytest.raises(SessionOverError):
        await store.claim(young, HASH)
    await store.close()


async def test_a_quick_restart_with_old_data_is_noticed(server: TestStore) -> None:
    """CASES 57: who comes back with what it had an hour ago bears the same mark, and is doubted."""
    clock = FakeClock()
    store = RedisStore(server.url, clock, RESUME_TTL_S)
    mark = await store.generation_mark()
    clock.advance(SETTLE_S)
    await store.commit([FIRST])
    with redis.Redis.from_url(server.url) as client:
        client.save()
    await store.commit([SessionWrite("s1", 1, acked=7)])
    server.stop()
    server.start()
    with pytest.raises(StoreUnavailableError):
        await store.claim("s1", HASH)
    assert await store.generation_mark() != mark
    clock.advance(SETTLE_S)
    claimed = await store.claim("s1", HASH)
    assert claimed is not None
    assert claimed.acked == 0
    await store.close()


async def test_scripts_are_loaded_again(server: TestStore) -> None:
    """A server that forgot the scripts gets them again within the same call, once each."""
    store = RedisStore(server.url, FakeClock(), RESUME_TTL_S, settle_s=0)
    await store.commit([FIRST])
    with redis.Redis.from_url(server.url) as client:
        client.script_flush()
    write = SessionWrite("s1", 1, streams=(StreamWrite("a", opened=b"{}", token_ids=(1, 2)),))
    assert (await store.commit([write])).missing == frozenset()
    claimed = await store.claim("s1", HASH)
    assert claimed is not None
    assert claimed.streams["a"].token_ids == (1, 2)
    await store.close()


async def test_all_keys_of_a_session_share_a_slot_and_expire(server: TestStore) -> None:
    """Every key carries the session's hash tag and a time to live."""
    store = RedisStore(server.url, FakeClock(), RESUME_TTL_S)
    stream = StreamWrite("a", opened=b"{}", token_ids=(1,))
    ended = StreamWrite("b", ended=b"{}")
    await store.commit([FIRST])
    await store.commit([SessionWrite("s1", 1, streams=(stream, ended))])
    with redis.Redis.from_url(server.url) as client:
        keys = [key for key in client.keys("*") if not key.startswith(b"seedance:deadlines")]
        assert len(keys) == 3
        assert all(b"{s1}" in key and client.ttl(key) > RESUME_TTL_S for key in keys)
    await store.close()


async def test_half_a_session_stops_nobody(server: TestStore) -> None:
    """What a write that failed on its way left behind is gone: no sweep, of no gateway, trips over it."""
    clock = FakeClock()
    store = RedisStore(server.url, clock, RESUME_TTL_S)
    await store.generation_mark()
    clock.advance(SETTLE_S + 1)
    client = redis.Redis.from_url(server.url)
    client.hset("seedance:{half}", mapping={"epoch": 1, "created": FIRST.created or b""})
    key = _deadlines_key(_shard_of("half"))
    client.zadd(key, {"half": 1})
    assert await store.sweep(10) == []
    assert await store.claim("half", HASH) is None
    assert client.zscore(key, "half") is None
    client.close()
    await store.close()


async def test_half_a_session_that_was_said_to_be_gone_does_not_come(server: TestStore) -> None:
    """A first write stopped half way, then its client heard `session_expired`: it is not made whole (§4.8)."""
    store = RedisStore(server.url, FakeClock(), RESUME_TTL_S, settle_s=0)
    entry = (LogEntry(1, b"{}"),)
    with redis.Redis.from_url(server.url) as client:
        client.set("seedance:{s1}:log", "no list")
        first = replace(FIRST, entries=entry)
        assert await store.commit([first]) == CommitResult(failed=frozenset({"s1"}))
        assert await store.claim("s1", HASH, bars=True) is None
        anew = replace(first, rewrite=True)
        for _ in range(2):
            assert await store.commit([anew]) == CommitResult(fenced=frozenset({"s1"}))
        assert client.keys("seedance:{s1}*") == [b"seedance:{s1}:barred"]
    assert await store.claim("s1", HASH) is None
    await store.close()


async def test_one_sessions_fault_is_not_the_stores(server: TestStore) -> None:
    """A session whose keys are broken fails alone, and is whole again when it is written anew."""
    clock = FakeClock()
    store = RedisStore(server.url, clock, RESUME_TTL_S)
    await store.generation_mark()
    clock.advance(SETTLE_S + 1)
    sound = SessionWrite("s2", 1, created=FIRST.created)
    entry = (LogEntry(1, b"{}"),)
    with redis.Redis.from_url(server.url) as client:
        await store.commit([FIRST])
        client.set("seedance:{s1}:log", "no list")
        result = await store.commit([SessionWrite("s1", 1, entries=entry), sound])
        assert result == CommitResult(failed=frozenset({"s1"}))
        with pytest.raises(StoreUnavailableError):
            await store.claim("s1", HASH)
        assert await store.claim("s2", HASH) is not None, "the store is not away"
        anew = replace(FIRST, entries=entry, rewrite=True)
        assert await store.commit([anew]) == CommitResult()
    claimed = await store.claim("s1", HASH)
    assert claimed is not None
    assert claimed.entries == entry
    await store.close()


async def test_a_server_that_takes_no_writes_is_away(server: TestStore) -> None:
    """An error that every session would get is the store's: each is kept in memory."""
    store = RedisStore(server.url, FakeClock(), RESUME_TTL_S)
    await store.commit([FIRST])
    with redis.Redis.from_url(server.url) as client:
        for setting, bad, good in (("min-replicas-to-write", 1, 0), ("maxmemory", 1, 0)):
            client.config_set(setting, bad)
            with pytest.raises(StoreUnavailableError):
                await store.commit([FIRST])
            client.config_set(setting, good)
    await store.close()


async def test_a_busy_process_is_no_store_that_is_away(
    server: TestStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A time-out that a blocked loop notices late is told apart: the store stays believed."""
    monkeypatch.setattr("mesh.store_link.COMMAND_TIMEOUT_S", 0.1)
    clock = FakeClock()
    store = RedisStore(server.url, clock, RESUME_TTL_S)
    await store.generation_mark()
    await store.commit([FIRST])
    clock.advance(SETTLE_S)
    asked = asyncio.create_task(store.commit([FIRST]))
    await asyncio.sleep(0)
    time.sleep(0.1 + LATE_S + 0.1)  # noqa: ASYNC251 - the loop is to be blocked
    with pytest.raises(StoreLateError):
        await asked
    assert await store.claim("s1", HASH) is not None, "nobody doubts it"
    assert not caplog.records
    await store.close()


@pytest.mark.parametrize("kind", ["valkey", "cluster"])
async def test_a_connection_closed_in_silence_is_opened_anew(
    request: pytest.FixtureRequest, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server or a proxy ends what is idle for long: the next write goes through, and nobody doubts the store."""
    place = request.getfixturevalue(kind)
    nodes = place.node_urls if isinstance(place, TestCluster) else [place.url]
    clock = FakeClock()
    partitions = partitions_of(place.url, 0)
    store = RedisStore(place.url, clock, RESUME_TTL_S, partitions=partitions)
    await store.generation_mark()
    await store.commit([FIRST])
    clock.advance(SETTLE_S)
    for node in nodes:
        with redis.Redis.from_url(node) as client:
            client.client_kill_filter(_type="normal", skipme=True)
    for _ in range(3):  # turns in which the loop hears of it
        await asyncio.sleep(0)
    assert await store.commit([SessionWrite("s1", 1, acked=7)]) == CommitResult()
    claimed = await store.claim("s1", HASH)
    assert claimed is not None
    assert claimed.acked == 7
    assert not caplog.records
    await store.close()


async def test_who_was_not_answered_asks_anew_which_nodes_there_are(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that hangs is replaced by others while it hangs: after a time-out its keys may be elsewhere."""
    link = open_link(cluster.url)
    nodes = [cluster.node(node) for node in range(NODES)]
    await link.ask([("GET", "a")])
    for node in nodes:
        node.client_pause(1000)
    with monkeypatch.context() as patch:
        patch.setattr("mesh.store_link.COMMAND_TIMEOUT_S", 0.2)
        with pytest.raises(TimeoutError):
            await link.ask([("GET", "a")])
    for node in nodes:
        node.config_resetstat()  # answered when the pause is over
    await link.ask([("GET", "a")])
    stats = [node.info("commandstats") for node in nodes]
    assert sum("cmdstat_cluster|slots" in told for told in stats) == 1
    for node in nodes:
        node.close()
    await link.close()
