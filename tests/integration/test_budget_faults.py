"""Budgets when a gateway, the store's data or metering goes: what was admitted goes on, what was spent stays spent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from gateway.store.redis import RedisStore
from gateway.upstream.membership import StaticList
from gateway.upstream.pool import InstancePool
from mesh.clock import SystemClock
from mesh.rpc.server import RpcServer
from metering.invoice.billing import Billing
from metering.invoice.desk import BillingDesk
from metering.plan_shelf import PlanShelf
from metering.service import MeteringService
from metering.store.billing import BillingStore
from seedance.v2 import metering_pb2_grpc
from tests.support.gateway_under_test import Wire, running_gateway, wire
from tests.support.instance import SECRET, running_instance
from tests.support.plans import plan_text
from tests.support.running_metering import RunningMetering, running_metering
from tests.support.scripts import script_messages
from tests.support.valkey import TestStore
from tests.support.waiting import wait_until

WORD = [b"word "]
LENGTH = 300
MESSAGES = script_messages(WORD, dt_ms=1, repeat=LENGTH)
PROMPT_TOKENS = len(MESSAGES[0]["content"])
PRICES = """
          tokens:
            - {models: ["*"], input_per_1000: "0.08", cached_per_1000: "0.08", output_per_1000: "0.16"}
"""
COST_ATOMS = 80_000 * PROMPT_TOKENS + 160_000 * LENGTH
NOBODY = "127.0.0.1:9"


@dataclass
class _Mesh:
    """One instance, a store and metering; `gateway` starts one that talks to them."""

    pool: InstancePool
    redis_url: str
    metering: RunningMetering
    address: str

    def gateway(self, store: RedisStore, budgets: str, **settings: Any) -> Any:
        return running_gateway(
            self.pool,
            store,
            **{
                "budgets": budgets,
                "redis": self.redis_url,
                "metering": self.address,
                "mesh_secret": SECRET,
                **settings,
            },
        )


@contextlib.asynccontextmanager
async def _mesh(redis_url: str, folder: Path) -> AsyncIterator[_Mesh]:
    plans = folder / "plans.yaml"
    plans.write_bytes(plan_text(PRICES))
    async with running_instance() as instance, running_metering(redis_url, folder) as metering:
        billing = Billing(BillingStore(metering.store.engine))
        desk = BillingDesk(metering.ledger, billing, PlanShelf(plans), SystemClock())
        rpc = RpcServer(["seedance.v2.Metering"], secret=SECRET)
        metering_pb2_grpc.add_MeteringServicer_to_server(  # type: ignore[no-untyped-call]
            MeteringService(metering.ledger, desk), rpc.server
        )
        port = await rpc.start("127.0.0.1:0")
        pool = InstancePool(StaticList([instance.address]), SystemClock(), mesh_secret=SECRET)
        running = asyncio.create_task(pool.run())
        try:
            await wait_until(pool.ready)
            yield _Mesh(pool, redis_url, metering, f"127.0.0.1:{port}")
        finally:
            running.cancel()
            await asyncio.wait([running])
            await rpc.drain(0)


async def _to_the_end(client: Wire, name: str) -> dict[str, Any]:
    while True:
        frame = await client.read()
        if "seq" in frame and frame["seq"] % 8 == 0:
            await client.send(type="ack", seq=frame["seq"] + 1)
        if frame["type"] in ("done", "error") and frame.get("id") == name:
            return frame


def _spent(valkey: TestStore, account: str) -> int:
    """What the store has of an account for good."""
    with redis.Redis.from_url(valkey.url) as client:
        keys = [key for key in client.scan_iter(f"seedance:budget:*{account}*") if b"}:" not in key]
        return sum(int(client.hget(key, "spent") or 0) for key in keys)


async def test_another_gateway_goes_on_without_metering(valkey: TestStore, tmp_path: Path) -> None:
    """The tariff is with the stream: a gateway that never heard a plan takes it over and settles it exactly."""
    stores = [RedisStore(valkey.url, SystemClock(), 120) for _ in range(2)]
    async with _mesh(valkey.url, tmp_path) as mesh:
        first = mesh.gateway(stores[0], "local=100 money/month")
        second = mesh.gateway(stores[1], "local=100 money/month", metering=NOBODY)
        async with first as one, second as two:
            async with wire(one.url) as client:
                session = client.seen[0]
                await client.send(type="generate", id="a", messages=MESSAGES)
                await client.until("checkpoint")
                await client.until("token")
                seen, last_seq, offset = client.seen, client.last_seq, client.offset("a")
            async with wire(two.url, greeting=False) as client:
                await client.read()
                client.seen = [*seen]
                await client.send(
                    type="resume",
                    session=session["session"],
                    token=session["token"],
                    last_seq=last_seq,
                    offsets={"a": offset},
                )
                await client.until("resumed")
                end = await _to_the_end(client, "a")
                assert end["type"] == "done", end
                assert client.text("a") == "word " * LENGTH
            await wait_until(lambda: _spent(valkey, "local//money/month") == COST_ATOMS)
    for store in stores:
        await store.close()


async def test_a_store_without_its_data_asks_the_ledger(valkey: TestStore, tmp_path: Path) -> None:
    """FLUSHALL between two streams: the second one is cut at the very token where the period's budget ends."""
    budget = 2 * PROMPT_TOKENS + LENGTH + 40
    store = RedisStore(valkey.url, SystemClock(), 120)
    async with (
        _mesh(valkey.url, tmp_path) as mesh,
        mesh.gateway(store, f"local={budget} tokens/day") as gateway,
    ):
        async with wire(gateway.url) as client:
            await client.send(type="generate", id="a", messages=MESSAGES)
            assert (await _to_the_end(client, "a"))["type"] == "done"
            await wait_until(lambda: mesh.metering.count("recorded") >= 3)
            with redis.Redis.from_url(valkey.url) as server:
                server.flushall()
            await client.send(type="generate", id="b", messages=MESSAGES)
            end = await _to_the_end(client, "b")
        assert end.get("code") == "quota_exceeded", end
        assert end["usage"]["completion_tokens"] == 40
        await wait_until(lambda: _spent(valkey, "local//tokens/day") == budget)
    await store.close()
