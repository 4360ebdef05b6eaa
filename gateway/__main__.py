"""`python -m gateway`: one gateway process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from gateway.affinity import AffinityTokens
from gateway.agent import serving_agent
from gateway.app import build_app
from gateway.budgets.opening import open_budgets
from gateway.config import GatewaySettings
from gateway.connections import Connections
from gateway.deps import GatewayDeps
from gateway.metering.meter import UsageMeter
from gateway.metering.spool import Spool
from gateway.receipts import KeyFileError, ReceiptSigner, load_signer
from gateway.server import GatewayServer, bind
from gateway.session.registry import SessionRegistry
from gateway.store.base import SessionStore
from gateway.store.memory import MemoryStore
from gateway.store.redis import RedisStore
from gateway.tenants.opening import open_authenticator, open_tenants
from gateway.tenants.upstream import FairUpstream
from gateway.tls import open_certificate
from gateway.upstream.membership import MembershipSource, RouterWatch, StaticList
from gateway.upstream.pool import InstancePool
from gateway.workers import run_workers
from mesh.clock import Clock, SystemClock
from mesh.document import DocumentError
from mesh.flags import settings_from_flags
from mesh.lifecycle import die_with_parent, run_service, spare_collector
from mesh.rpc.channel import Dial, open_channel
from mesh.rpc.identity import identity_of
from mesh.settings import exit_with
from mesh.store import check_store
from mesh.store_link import StoreMisfitError
from mesh.telemetry.logs import setup_logs
from mesh.telemetry.metrics import GatewayMetrics, serve_metrics
from mesh.telemetry.tracing import Tracing

__all__ = ["main", "serve"]

INSTANCES_WAIT_S = 2.0
INSTANCES_POLL_S = 0.01


def _store(settings: GatewaySettings, clock: Clock) -> SessionStore:
    if not settings.redis:
        return MemoryStore(clock, settings.resume_ttl_s)
    return RedisStore(settings.redis, clock, settings.resume_ttl_s, partitions=settings.partitions)


async def _check_store(settings: GatewaySettings) -> None:
    if not settings.redis:
        return
    try:
        await check_store(settings.redis, settings.partitions)
    except StoreMisfitError as misfit:
        exit_with(str(misfit))


def _spool(settings: GatewaySettings) -> Spool | None:
    if not settings.usage_spool:
        return None
    try:
        return Spool(Path(settings.usage_spool), secrets.token_hex(8))
    except OSError as error:
        exit_with(f"cannot use the folder of --usage-spool ({error.strerror})")


def _membership(settings: GatewaySettings, clock: Clock, dial: Dial) -> MembershipSource:
    if settings.router:
        secret = settings.mesh_secret.get_secret_value()
        return RouterWatch(settings.router, settings.server_name, clock, dial, secret)
    return StaticList(settings.instance_addresses, dial)


def _pool(settings: GatewaySettings, clock: Clock, metrics: GatewayMetrics) -> InstancePool:
    dial = partial(open_channel, identity=identity_of(settings))
    return InstancePool(
        _membership(settings, clock, dial),
        clock,
        mesh_secret=settings.mesh_secret.get_secret_value(),
        calls=settings.upstream_calls,
        on_breaker=lambda instance, state: metrics.breakers.labels(instance, state.value).inc(),
        dial=dial,
    )


def _tracing(settings: GatewaySettings) -> Tracing:
    return Tracing(
        "gateway",
        secrets.token_hex(4),
        endpoint=settings.otlp_endpoint,
        ratio=settings.trace_ratio,
    )


def _receipts(settings: GatewaySettings) -> ReceiptSigner | None:
    try:
        return load_signer(settings.receipt_key_files)
    except KeyFileError as error:
        exit_with(f"--receipt-key: {error}")


async def _instances_known(pool: InstancePool) -> None:
    """Return when an instance can take a stream, or it has taken too long to wait for one."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(INSTANCES_WAIT_S):
            while not pool.ready():  # noqa: ASYNC110 - the pool is asked by many, and tells nobody
                await asyncio.sleep(INSTANCES_POLL_S)


@contextlib.contextmanager
def _metrics_port(settings: GatewaySettings, metrics: GatewayMetrics) -> Iterator[None]:
    """Prometheus' own port, where one is asked for: the shared one answers for any worker."""
    port, _ = settings.ports_beside
    if not port:
        yield
        return
    stop = serve_metrics(metrics.registry, settings.host, port)
    try:
        yield
    finally:
        stop()


def _announce(line: str, stop: asyncio.Event) -> None:
    """Tell whoever started this process; nobody would end it who has gone meanwhile."""
    try:
        os.write(sys.stdout.fileno(), line.encode())
    except BrokenPipeError:
        stop.set()


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain."""
    sock = bind(settings.host, settings.port, shared=settings.worker >= 0)
    port = sock.getsockname()[1]
    settings = settings.model_copy(update={"port": port})
    clock = SystemClock()
    await _check_store(settings)
    store = _store(settings, clock)
    metrics = GatewayMetrics()
    pool = _pool(settings, clock, metrics)
    try:
        tenants = open_tenants(settings, clock)
        authenticator = open_authenticator(settings, store, tenants, clock)
    except (DocumentError, ValueError) as error:
        exit_with(str(error))
    upstream = FairUpstream(pool, tenants, clock, settings.openings_max)
    tracing = _tracing(settings)
    budgets = open_budgets(settings, tenants, clock, metrics)
    deps = GatewayDeps(
        settings,
        clock,
        store,
        upstream,
        tracing,
        metrics,
        authenticator,
        UsageMeter(store, clock, _spool(settings)),
        tenants,
        affinity=AffinityTokens(settings.mesh_secret.get_secret_value()),
        receipts=_receipts(settings),
        budgets=budgets,
    )
    await deps.usage.take_up()
    registry = SessionRegistry(deps)
    connections = Connections(settings.connections_max, settings.connections_per_address)
    app = build_app(deps, registry, connections)
    certificate = open_certificate(settings.tls_cert, settings.tls_key)
    server = GatewayServer(app, settings, connections, clock, certificate)
    _, agent_port = settings.ports_beside
    agent = serving_agent(settings.host, agent_port, connections, deps.handshakes, clock)
    async with agent, asyncio.TaskGroup() as tasks:
        housekeeping = [
            *(tasks.create_task(part.run()) for part in (pool, registry, budgets)),
            tasks.create_task(tenants.run(upstream)),
        ]
        # The socket listens already: whoever connects now waits a moment in its backlog instead of
        # hearing from a gateway just started that there are no instances (CASES 48).
        await _instances_known(pool)
        if settings.announce:
            _announce(f"ready {settings.host}:{port}\n", stop)
        with _metrics_port(settings, metrics):
            await server.run_until(stop, sock)
        await registry.close()
        for task in housekeeping:
            task.cancel()
    await deps.usage.close()
    await tenants.close()
    await store.close()
    tracing.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Read the settings and serve."""
    settings = settings_from_flags(
        GatewaySettings,
        "python -m gateway",
        "Streams generations to clients over WebSocket and HTTP.",
        argv,
    )
    if settings.die_with_parent:
        die_with_parent()
    setup_logs(settings.log_level, as_json=settings.log_json)
    if settings.workers > 1 and settings.worker < 0:
        flags = tuple(sys.argv[1:] if argv is None else argv)
        run_service(lambda stop: run_workers(settings, flags, stop))
    else:
        spare_collector()
        run_service(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
