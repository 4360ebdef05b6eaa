"""`python -m metering`: one metering process."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from mesh.clock import SystemClock
from mesh.document import DocumentError
from mesh.flags import settings_from_flags
from mesh.lifecycle import die_with_parent, run_service
from mesh.rpc.identity import identity_of
from mesh.rpc.server import RpcServer
from mesh.settings import exit_with
from mesh.store import check_store
from mesh.store_link import StoreMisfitError
from mesh.telemetry.logs import setup_logs
from mesh.telemetry.metrics import MeteringMetrics, serve_metrics
from mesh.telemetry.tracing import Tracing
from metering.config import MeteringSettings
from metering.conservation import Conservation
from metering.consumer import UsageConsumer
from metering.invoice.billing import Billing
from metering.invoice.desk import BillingDesk
from metering.leases import LeaseKeeper
from metering.ledger import Ledger, LedgerUnavailableError
from metering.plan_shelf import PlanShelf
from metering.service import MeteringService
from metering.store.billing import BillingStore
from metering.store.books import BookStore
from metering.store.sql import SqlStore
from seedance.v2 import metering_pb2, metering_pb2_grpc

__all__ = ["main", "serve"]


def _open_store(settings: MeteringSettings) -> SqlStore:
    try:
        return SqlStore(settings.ledger)
    except (SQLAlchemyError, ImportError, OSError):
        # The URL may hold a password and the driver's message may hold the URL: neither is shown.
        exit_with("cannot open the ledger: does --ledger name an existing folder or a database?")


def _open_plans(settings: MeteringSettings) -> PlanShelf | None:
    try:
        return PlanShelf(Path(settings.plans)) if settings.plans else None
    except DocumentError as error:
        exit_with(str(error))


async def _check_store(settings: MeteringSettings) -> None:
    try:
        await check_store(settings.redis, settings.partitions)
    except StoreMisfitError as misfit:
        exit_with(str(misfit))


def _serve_metrics(settings: MeteringSettings, metrics: MeteringMetrics) -> Callable[[], None]:
    if not settings.metrics_port:
        return lambda: None
    return serve_metrics(metrics.registry, settings.host, settings.metrics_port)


async def serve(settings: MeteringSettings, stop: asyncio.Event) -> None:
    """Carry usage into the ledger and answer questions until `stop` is set."""
    tracing = Tracing(
        "metering",
        secrets.token_hex(4),
        endpoint=settings.otlp_endpoint,
        ratio=settings.trace_ratio,
    )
    metrics = MeteringMetrics()
    stop_metrics = _serve_metrics(settings, metrics)
    await _check_store(settings)
    plans = _open_plans(settings)  # before a ledger is made that nobody will use
    store = _open_store(settings)
    ledger = Ledger(store, SystemClock())
    billing = Billing(BillingStore(store.engine))
    desk = BillingDesk(ledger, billing, plans, SystemClock())
    conservation = Conservation(BookStore(store.engine), SystemClock(), metrics)
    consumer = UsageConsumer(
        settings.redis,
        settings.consumer,
        ledger,
        partitions=settings.partitions,
        clock=SystemClock(),
        tracing=tracing,
        metrics=metrics,
        conservation=conservation,
    )
    leases = LeaseKeeper(settings.redis, ledger, SystemClock())
    with contextlib.suppress(LedgerUnavailableError):  # they wait for the next start
        await ledger.take_up_refused()
    name = metering_pb2.DESCRIPTOR.services_by_name["Metering"].full_name
    rpc = RpcServer([name], identity_of(settings), settings.mesh_secret.get_secret_value())
    metering_pb2_grpc.add_MeteringServicer_to_server(  # type: ignore[no-untyped-call]
        MeteringService(ledger, desk), rpc.server
    )
    port = await rpc.start(f"{settings.host}:{settings.port}")
    if settings.announce:
        sys.stdout.write(f"ready {settings.host}:{port}\n")
        sys.stdout.flush()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run(stop))
        tasks.create_task(leases.run(stop))
        tasks.create_task(conservation.run(stop))
        await stop.wait()
        await rpc.drain(settings.drain_grace_s)
    await consumer.close()
    await leases.close()
    ledger.close()
    stop_metrics()
    tracing.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Read the settings and serve."""
    settings = settings_from_flags(
        MeteringSettings,
        "python -m metering",
        "Counts usage events once each, and answers what a tenant used.",
        argv,
    )
    if settings.die_with_parent:
        die_with_parent()
    setup_logs(settings.log_level, as_json=settings.log_json)
    run_service(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
