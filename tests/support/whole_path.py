"""The whole path of a token in this process: a script instance over real gRPC, a gateway on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from gateway.upstream.membership import StaticList
from gateway.upstream.pool import InstancePool
from inference.instance import Instance
from mesh.clock import SystemClock
from tests.support.gateway_under_test import GatewayUnderTest, Wire, running_gateway, wire
from tests.support.instance import SECRET, running_instance
from tests.support.scripts import script_messages
from tests.support.waiting import wait_until

__all__ = ["WholePath", "cancel_by_cutting", "whole_path"]

LOOK_S = 0.0005


@dataclass
class WholePath:
    """Its two ends."""

    gateway: GatewayUnderTest
    instance: Instance

    @property
    def blocks_used(self) -> int:
        """KV blocks of the instance that hold something now."""
        load = self.instance._engine.load
        return load.total_blocks - load.free_blocks

    @property
    def running(self) -> int:
        """Sequences in the instance's batch."""
        return self.instance._engine.load.running


@contextlib.asynccontextmanager
async def whole_path(**settings: Any) -> AsyncIterator[WholePath]:
    """A gateway with these settings, and one instance."""
    async with running_instance() as instance:
        pool = InstancePool(StaticList([instance.address]), SystemClock(), mesh_secret=SECRET)
        running = asyncio.create_task(pool.run())
        await wait_until(pool.ready)
        try:
            async with running_gateway(pool, **settings) as gateway:
                yield WholePath(gateway, instance)
        finally:
            running.cancel()
            await asyncio.wait([running])


async def _first_text(client: Wire) -> None:
    await client.until("token")


async def cancel_by_cutting(path: WholePath) -> float:
    """Cut a client in the middle of a stream that is not to outlive it; seconds until its blocks are free."""
    async with wire(path.gateway.url) as client:
        messages = script_messages([b"x "], dt_ms=1, repeat=100_000)
        await client.send(type="generate", id="a", messages=messages, on_disconnect="cancel")
        await _first_text(client)
        await wait_until(lambda: path.running == 1)
        assert path.blocks_used
        cut = time.perf_counter()
        client.connection.transport.abort()
        while path.running or path.blocks_used:
            assert time.perf_counter() - cut < 10, "the blocks were never freed"
            await asyncio.sleep(LOOK_S)
        return time.perf_counter() - cut
