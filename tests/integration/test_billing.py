"""Plans and invoices from a tenant's request through gateway and metering to the ledger."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from mesh.rpc.server import RpcServer
from metering.invoice.desk import BillingDesk
from metering.plans.calendar import Month
from metering.service import MeteringService
from seedance.v2 import metering_pb2_grpc
from tests.support.billing_desk import open_desk
from tests.support.clock import FakeClock
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import running_gateway
from tests.support.plans import plan_text
from tests.support.usage_events import usage_payload

NOVEMBER_MS, DECEMBER_MS = 1_793_491_200_000, 1_796_083_200_000


@dataclass
class Shop:
    """A gateway, its metering, and a client of tenant `local`."""

    client: httpx.AsyncClient
    desk: BillingDesk
    plans: Path


@contextlib.asynccontextmanager
async def running_shop(folder: Path, *, with_plans: bool = True) -> AsyncIterator[Shop]:
    plans = folder / "plans.yaml"
    plans.write_bytes(plan_text())
    clock = FakeClock(DECEMBER_MS / 1000 + 1)
    desk = open_desk(folder, plans if with_plans else None, clock)
    rpc = RpcServer(["seedance.v2.Metering"], None, "s3cret")
    metering_pb2_grpc.add_MeteringServicer_to_server(  # type: ignore[no-untyped-call]
        MeteringService(desk.ledger, desk), rpc.server
    )
    port = await rpc.start("127.0.0.1:0")
    settings = {"metering": f"127.0.0.1:{port}", "mesh_secret": "s3cret"}
    try:
        async with (
            running_gateway(FakeUpstream(FakeCluster()), **settings) as gateway,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}") as client,
        ):
            yield Shop(client, desk, plans)
    finally:
        await rpc.drain(0)
        desk.ledger.close()


def output(event_id: str, at_ms: int, tenant: str = "local") -> bytes:
    counts = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 1_000}
    return usage_payload(event_id, started_ms=at_ms, tenant=tenant, **counts)


async def test_plan_and_invoices(tmp_path: Path) -> None:
    """A tenant sees its plan, its closed invoices and its draft, in three forms, and nobody else's."""
    async with running_shop(tmp_path) as shop:
        await shop.desk.ledger.record(
            [
                output("1", NOVEMBER_MS),
                output("2", DECEMBER_MS),
                output("3", NOVEMBER_MS, "other"),
            ]
        )
        (plan,) = (await shop.client.get("/v1/plans")).json()["data"]
        assert (plan["plan"], plan["version"], plan["currency"]) == ("standard", "2000", "CNY")
        price = plan["versions"][0]["prices"]["tokens"][0]
        assert price["output_per_1000"] == "0.16"
        book = shop.desk.shelf.book()  # type: ignore[union-attr]
        shop.desk.billing.close(book, "local", Month(2026, 11), DECEMBER_MS)
        told = (await shop.client.get("/v1/invoices")).json()["data"]
        heads = [(t["month"], t["state"], t["total"]) for t in told]
        assert heads == [("2026-11", "closed", "0.16"), ("2026-12", "draft", "0.16")]
        closed = (await shop.client.get("/v1/invoices/2026-11")).json()
        assert (closed["state"], closed["total"]) == ("closed", "0.16")
        rows = await shop.client.get("/v1/invoices/2026-11?format=csv")
        assert rows.headers["content-type"] == "text/csv; charset=utf-8"
        assert [r["amount"] for r in csv.DictReader(io.StringIO(rows.text))][-1] == "0.16"
        page = await shop.client.get("/v1/invoices/2026-12?format=html")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "Total so far" in page.text


async def test_bad_questions(tmp_path: Path) -> None:
    """A month or format that is none is named."""
    async with running_shop(tmp_path) as shop:
        for path in ("2026-13", "next", "2026-11?format=pdf"):
            answer = await shop.client.get(f"/v1/invoices/{path}")
            assert answer.status_code == 400, path
            assert answer.json()["error"]["code"] == "bad_request"


async def test_without_plans(tmp_path: Path) -> None:
    """No plans: an empty list, and an invoice that says why there is none."""
    async with running_shop(tmp_path, with_plans=False) as shop:
        for path in ("plans", "invoices"):
            assert (await shop.client.get(f"/v1/{path}")).json()["data"] == []
        answer = await shop.client.get("/v1/invoices/2026-11")
        assert answer.status_code == 404
        assert "there are no price plans" in answer.json()["error"]["message"]


async def test_usage_without_a_price(tmp_path: Path) -> None:
    """What has no price is said instead of an invoice that leaves it out."""
    async with running_shop(tmp_path) as shop:
        text = plan_text().replace(b'"*"', b"big")
        shop.plans.write_bytes(text)
        await shop.desk.ledger.record([output("1", DECEMBER_MS)])
        answer = await shop.client.get("/v1/invoices/2026-12")
        assert answer.status_code == 404
        assert "no token price for model 'smol'" in answer.json()["error"]["message"]
