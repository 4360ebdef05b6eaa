"""From a real conversation over gateway, store and metering's consumer to the invoice, and what may fail."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Table, select

from gateway.metering import outbox
from gateway.metering.spool import Spool
from gateway.store.redis import RedisStore
from mesh.clock import SystemClock
from metering import leases
from metering.invoice.billing import Billing
from metering.invoice.document import Invoice
from metering.leases import LeaseKeeper
from metering.plans.calendar import month_at
from metering.store.billing import BillingStore
from metering.store.tables import CONNECTIONS, OPENINGS, REQUESTS, USAGE
from tests.support.gateway_under_test import wire
from tests.support.plans import book
from tests.support.running_metering import RunningMetering, running_metering
from tests.support.scripts import script_messages
from tests.support.service_process import running_service
from tests.support.valkey import TestStore, running_valkey
from tests.support.waiting import wait_until
from tests.support.whole_path import WholePath, whole_path

KEY = "secret-of-acme"
KEYS = f"acme:{hashlib.sha256(KEY.encode()).hexdigest()}"
SHOWN = {"Authorization": f"Bearer {KEY}"}


@dataclass
class Relay:
    """Carries one connection, and counts what goes over it after the HTTP heads."""

    port: int = 0
    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)

    @property
    def message_bytes(self) -> int:
        return sum(len(data) - data.index(b"\r\n\r\n") - 4 for data in (self.sent, self.received))


@contextlib.asynccontextmanager
async def relay_to(port: int) -> AsyncIterator[Relay]:
    relay = Relay()

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        while data := await reader.read(65_536):
            kept += data
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, back, relay.sent), carry(there, writer, relay.received))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    async with server:
        yield relay


@dataclass
class Pipeline:
    """Everything between a client and its bill."""

    path: WholePath
    metering: RunningMetering

    def rows(self, table: Table) -> list[Any]:
        with self.metering.store.engine.connect() as connection:
            return list(connection.execute(select(table)))

    def invoice(self, prices: str) -> Invoice:
        plans = book(prices, digits=6)  # type: ignore[arg-type]
        billing = Billing(BillingStore(self.metering.store.engine))
        return billing.draft(plans, "acme", month_at(SystemClock().wall_ms(), plans.zone))


@contextlib.asynccontextmanager
async def pipeline(redis_url: str, folder: Path, **settings: Any) -> AsyncIterator[Pipeline]:
    store = RedisStore(redis_url, SystemClock(), 120)
    settings = {"keys": KEYS, "anonymous_tenant": "", **settings}
    async with running_metering(redis_url, folder) as metering:
        async with whole_path(store=store, **settings) as path:
            yield Pipeline(path, metering)
        await store.close()


async def test_a_conversation_is_billed_in_every_mode(valkey: TestStore, tmp_path: Path) -> None:
    """Two connections, three requests, 30 tokens: each plan's total is the exact figure (CASES 102)."""
    async with pipeline(valkey.url, tmp_path) as run:
        gateway = run.path.gateway
        async with (
            relay_to(gateway.port) as relay,
            wire(f"ws://127.0.0.1:{relay.port}/v2/infer", additional_headers=SHOWN) as client,
            wire(f"{gateway.url}?mode=connection", additional_headers=SHOWN),
        ):
            messages = script_messages([b"ab ", b"c "], repeat=15)
            await client.send(type="generate", id="a", messages=messages)
            done = await client.until("done")
            await client.send(type="generate", id="a", messages=messages)  # the same one
            await client.send(type="generate", id="b", messages=messages, temperature=-1)
            await client.until("error")
            await client.send(type="generate", id="c", messages=messages, max_tokens=0)
            await client.until("error")
        await wait_until(lambda: len(run.rows(CONNECTIONS)) == 2)
        await wait_until(lambda: len(run.rows(REQUESTS)) == 3)
        prompt = done["usage"]["prompt_tokens"]
        assert done["usage"]["completion_tokens"] == 30
        tokens = run.invoice(
            """
          tokens:
            - {models: ["*"], input_per_1000: "0.08", cached_per_1000: "0.02", output_per_1000: "0.16"}
"""
        )
        cached = done["usage"]["cached_tokens"]
        assert tokens.total == (
            Decimal("0.00008") * (prompt - cached) + Decimal("0.00002") * cached + Decimal("0.0048")
        )
        assert run.invoice('\n          requests: {per_request: "0.001"}\n').total == Decimal(
            "0.003"
        )
        tiers = "\n          concurrency: {tiers: [{from: 1, to: 1, per_month: 1}, {from: 2, per_month: 299}]}\n"
        assert run.invoice(tiers).total == 299
        spans = run.rows(CONNECTIONS)
        seconds = Decimal(sum(s.ended_ms - s.opened_ms for s in spans)) / 1000
        assert 0 < seconds < 60
        timed = run.invoice('\n          connection_time: {per_second: "0.001"}\n')
        assert timed.total == seconds * Decimal("0.001")
        (carried,) = [s for s in spans if s.bytes == relay.message_bytes]
        assert carried.rtt_samples > 0
        weighed = sum(s.bytes * Decimal(s.rtt_us_sum) / s.rtt_samples / 1000 for s in spans)
        by_bytes = run.invoice(
            """
          time_bandwidth: {alpha_per_second: "0.1", beta_per_byte: "0.01", gamma_per_byte_ms: "0.001"}
"""
        )
        assert [line.amount for line in by_bytes.lines] == [
            seconds * Decimal("0.1"),
            sum(s.bytes for s in spans) * Decimal("0.01"),
            (weighed * Decimal("0.001")).quantize(Decimal("0.000001"), "ROUND_HALF_UP"),
        ]
        opened = {row.id.removesuffix("opened"): row.mode for row in run.rows(OPENINGS)}
        assert set(opened) == {s.id.removesuffix("closed") for s in spans}
        assert sorted(opened.values()) == ["connection", "token"]


async def test_tokens_are_conserved(valkey: TestStore, tmp_path: Path) -> None:
    """Whole, cancelled, unstreamed and over HTTP: the instance's count is the gateway's, stream by stream."""
    async with pipeline(valkey.url, tmp_path) as run:
        gateway = run.path.gateway
        async with wire(gateway.url, additional_headers=SHOWN) as client:
            short = script_messages([b"a", b"\xf0\x9f"], repeat=4)  # a tail without text
            await client.send(type="generate", id="whole", messages=short)
            await client.until("done", id="whole")
            await client.send(type="generate", id="once", messages=short, stream=False)
            await client.until("done", id="once")
            slow = script_messages([b"x "], dt_ms=2, repeat=5_000)
            await client.send(type="generate", id="cut", messages=slow, stream=False)
            (owner,) = gateway.registry.owners
            live = owner.machine.streams.live
            await wait_until(lambda: "cut" in live and len(live["cut"].text.token_ids) > 3)
            await client.send(type="cancel", id="cut")
            await client.until("done", id="cut")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}") as http:
            body = {"model": "script", "messages": short, "n": 2}
            answer = await http.post("/v1/chat/completions", json=body, headers=SHOWN)
            assert answer.status_code == 200
        await wait_until(lambda: run.metering.conserved("equal") == 4)
        assert run.metering.conserved("different") == run.metering.conserved("untold") == 0
        (day,) = run.metering.books.days()
        assert day.balanced
        assert sum(row.computed_tokens for row in run.rows(USAGE)) == day.computed


async def test_requests_over_http(valkey: TestStore, tmp_path: Path) -> None:
    """CASES 102: a 401 with a known key counts 1, resends with one idempotency key count 1 together."""
    async with pipeline(valkey.url, tmp_path) as run:
        url = f"http://127.0.0.1:{run.path.gateway.port}/v1/chat/completions"
        body = {"model": "script", "messages": script_messages([b"a"])}
        async with httpx.AsyncClient() as http:
            assert (await http.post(f"{url}?token=x", json=body, headers=SHOWN)).status_code == 401
            unknown = {"Authorization": "Bearer nobody's"}
            assert (await http.post(url, json=body, headers=unknown)).status_code == 401
            assert (await http.post(url, json={}, headers=SHOWN)).status_code == 400
            for _ in range(4):
                named = SHOWN | {"Idempotency-Key": "order-7"}
                assert (await http.post(url, json=body, headers=named)).status_code == 200
            assert (await http.post(url, json=body, headers=SHOWN)).status_code == 200
        await wait_until(lambda: len(run.rows(REQUESTS)) == 4)
        outcomes = sorted(row.outcome for row in run.rows(REQUESTS))
        assert outcomes == ["asked", "asked", "bad_request", "unauthorized"]


async def test_a_flushed_store_loses_nothing(
    valkey: TestStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What metering had not taken when the store lost everything is told again, and counts once."""
    monkeypatch.setattr(outbox, "MISSING_AFTER_S", 0.3)
    store = RedisStore(valkey.url, SystemClock(), 120)
    async with (
        whole_path(store=store, keys=KEYS, anonymous_tenant="") as path,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{path.gateway.port}") as http,
    ):
        body = {"model": "script", "messages": script_messages([b"a"])}
        for _ in range(3):
            await http.post("/v1/chat/completions", json=body, headers=SHOWN)
        usage = path.gateway.deps.usage
        await wait_until(lambda: not usage.outbox.unsent(1))
        assert len(usage) == 6  # a request and a stream each
        await store._run([("FLUSHALL",)])
        async with running_metering(valkey.url, tmp_path) as metering:
            await wait_until(lambda: len(usage) == 0, within_s=10)
            assert metering.count("recorded") == 6
            assert (await metering.ledger.usage("acme"))[0].requests == 3
    await store.close()


async def test_a_killed_gateways_connections_end_at_its_last_beat(
    valkey: TestStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks ends them, once each, no later than the kill and little earlier."""
    monkeypatch.setattr(leases, "LEASE_LOST_S", 1.5)
    clock = SystemClock()
    flags = ("--redis", valkey.url, "--anonymous-tenant", "acme")
    async with (
        running_metering(valkey.url, tmp_path) as metering,
        running_service("gateway", *flags) as gateway,
    ):
        url = f"ws://{gateway.address}/v2/infer"
        async with wire(url) as client, wire(url):
            begun = clock.monotonic()
            await client.send(type="ping", t=1)
            await client.until("pong")
            await asyncio.sleep(2.5)  # it is the time that is measured
            await gateway.kill()
            lived_ms = (clock.monotonic() - begun) * 1000
        other = LeaseKeeper(valkey.url, metering.ledger, clock)
        run = Pipeline(None, metering)  # type: ignore[arg-type]
        while len(run.rows(CONNECTIONS)) < 2:
            await other.look()
            await asyncio.sleep(0.05)
        await other.close()
        rows = run.rows(CONNECTIONS)
        assert len(rows) == 2
        for row in rows:
            assert lived_ms - 1_500 < row.ended_ms - row.opened_ms <= lived_ms + 500
        assert sum(row.bytes for row in rows) > 100
        assert all(row.rtt_samples for row in rows)
        assert {row.id for row in rows} == {
            row.id.replace("opened", "closed") for row in run.rows(OPENINGS)
        }


async def test_events_of_a_gateway_that_was_killed_while_the_store_was_away(tmp_path: Path) -> None:
    """They are in its spool, and the next gateway on the folder tells them."""
    spool = tmp_path / "spool"
    with running_valkey() as server:
        flags = ("--redis", server.url, "--anonymous-tenant", "acme", "--usage-spool", str(spool))
        async with running_service("gateway", *flags) as gateway:
            await asyncio.to_thread(server.stop)
            async with wire(f"ws://{gateway.address}/v2/infer"):
                pass

            def closed() -> bool:
                return any(b"connection_closed" in p.read_bytes() for p in spool.iterdir())

            await wait_until(closed)
            await gateway.kill()
        await asyncio.to_thread(server.start)
        async with (
            running_metering(server.url, tmp_path) as metering,
            running_service("gateway", *flags),
        ):
            await wait_until(lambda: metering.count("recorded") == 2)
            run = Pipeline(None, metering)  # type: ignore[arg-type]
            assert len(run.rows(CONNECTIONS)) == 1
            await wait_until(lambda: all(not p.stat().st_size for p in spool.iterdir()), 10)


async def test_the_spool_empties_as_the_ledger_fills(valkey: TestStore, tmp_path: Path) -> None:
    """In good times an event is on the disk for about a second."""
    folder = tmp_path / "spool"
    async with pipeline(valkey.url, tmp_path, spool=Spool(folder, "g")) as run:
        async with wire(run.path.gateway.url, additional_headers=SHOWN):
            await wait_until(lambda: any(p.stat().st_size for p in folder.iterdir()))
        await wait_until(lambda: len(run.rows(CONNECTIONS)) == 1)
        await wait_until(lambda: len(run.path.gateway.deps.usage) == 0)
        await wait_until(lambda: not any(p.stat().st_size for p in folder.iterdir()))
    assert list(folder.iterdir()) == []
