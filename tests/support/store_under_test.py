"""All session stores behind one harness: two gateways' views of the same data, and time travel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import pytest
import redis.asyncio

from gateway.store.base import SessionStore, UsageEvent
from gateway.store.memory import MemoryStore
from gateway.store.redis import RedisStore
from mesh.clock import SystemClock
from mesh.store import CLUSTER_PARTITIONS, Partitions
from tests.support.clock import FakeClock

__all__ = ["RESUME_TTL_S", "STORES", "StoreUnderTest", "store_of"]

RESUME_TTL_S = 120.0
# In this process, on a server, on one that is divided, and on a cluster.
STORES = ("memory", "redis", "divided", "cluster")


class StoreUnderTest(Protocol):
    """What the contract suite needs."""

    one: SessionStore
    other: SessionStore

    async def pass_time(self, seconds: float) -> None: ...

    async def usage(self) -> list[UsageEvent]: ...


@dataclass
class _Memory:
    one: MemoryStore
    other: MemoryStore
    clock: FakeClock

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def usage(self) -> list[UsageEvent]:
        return list(self.one.usage)


@dataclass
class _Redis:
    one: RedisStore
    other: RedisStore
    clients: list[redis.asyncio.Redis]

    async def pass_time(self, seconds: float) -> None:
        """Move everything that the servers keep time of into the past."""
        for client in self.clients:
            async for key in client.scan_iter("*"):
                await _move(client, key, round(seconds * 1000))

    async def usage(self) -> list[UsageEvent]:
        entries = []
        for client in self.clients:
            async for key in client.scan_iter("*usage", _type="stream"):
                entries += await client.xrange(key)
        return [UsageEvent(f[b"id"].decode(), f[b"payload"]) for _, f in sorted(entries, key=_told)]


def _told(entry: tuple[bytes, dict[bytes, bytes]]) -> tuple[int, ...]:
    return tuple(map(int, entry[0].split(b"-")))


async def _move(client: redis.asyncio.Redis, key: bytes, moved_ms: int) -> None:
    left_ms = await client.pttl(key)
    if left_ms >= 0:
        await client.pexpire(key, max(0, left_ms - moved_ms))
    kind = await client.type(key)
    if kind == b"hash" and await client.hexists(key, "deadline"):
        await client.hincrby(key, "deadline", -moved_ms)
    if kind == b"zset":
        for member in await client.zrange(key, 0, -1):
            await client.zincrby(key, -moved_ms, member)


@asynccontextmanager
async def _memory_store() -> AsyncIterator[StoreUnderTest]:
    clock = FakeClock()
    store = MemoryStore(clock, RESUME_TTL_S)
    yield _Memory(store, store, clock)


@asynccontextmanager
async def _redis_store(
    url: str, partitions: int = 1, nodes: Sequence[str] = ()
) -> AsyncIterator[StoreUnderTest]:
    """On a server, or on a cluster with these `nodes`, each by the URL of it alone."""
    one, other = (
        RedisStore(url, SystemClock(), RESUME_TTL_S, settle_s=0, partitions=Partitions(partitions))
        for _ in range(2)
    )
    clients = [redis.asyncio.Redis.from_url(node) for node in nodes or (url,)]
    yield _Redis(one, other, clients)
    for client in clients:
        await client.aclose()
    await one.close()
    await other.close()


def store_of(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[StoreUnderTest]:
    """The store of the kind that a fixture's `request` has for parameter."""
    if request.param == "memory":
        return _memory_store()
    if request.param == "cluster":
        cluster = request.getfixturevalue("cluster")
        return _redis_store(cluster.url, CLUSTER_PARTITIONS, cluster.node_urls)
    partitions = 4 if request.param == "divided" else 1
    return _redis_store(request.getfixturevalue("valkey").url, partitions)
