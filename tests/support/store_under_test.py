"""Both session stores behind one harness: two gateways' views of the same data, and time travel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import redis.asyncio

from gateway.store.base import SessionStore, UsageEvent
from gateway.store.memory import MemoryStore
from gateway.store.redis import RedisStore
from mesh.clock import SystemClock
from tests.support.clock import FakeClock

__all__ = ["RESUME_TTL_S", "StoreUnderTest", "memory_store", "redis_store"]

RESUME_TTL_S = 120.0


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
    client: redis.asyncio.Redis

    async def pass_time(self, seconds: float) -> None:
        """Move everything that the server keeps time of into the past."""
        moved_ms = round(seconds * 1000)
        async for key in self.client.scan_iter("*"):
            left_ms = await self.client.pttl(key)
            if left_ms >= 0:
                await self.client.pexpire(key, max(0, left_ms - moved_ms))
            kind = await self.client.type(key)
            if kind == b"hash" and await self.client.hexists(key, "deadline"):
                await self.client.hincrby(key, "deadline", -moved_ms)
            if kind == b"zset":
                for member in await self.client.zrange(key, 0, -1):
                    await self.client.zincrby(key, -moved_ms, member)

    async def usage(self) -> list[UsageEvent]:
        entries = await self.client.xrange("seedance:usage")
        return [UsageEvent(f[b"id"].decode(), f[b"payload"]) for _, f in entries]


@asynccontextmanager
async def memory_store() -> AsyncIterator[StoreUnderTest]:
    clock = FakeClock()
    store = MemoryStore(clock, RESUME_TTL_S)
    yield _Memory(store, store, clock)


@asynccontextmanager
async def redis_store(url: str) -> AsyncIterator[StoreUnderTest]:
    one, other = (RedisStore(url, SystemClock(), RESUME_TTL_S, settle_s=0) for _ in range(2))
    async with redis.asyncio.Redis.from_url(url) as client:
        yield _Redis(one, other, client)
    await one.close()
    await other.close()
