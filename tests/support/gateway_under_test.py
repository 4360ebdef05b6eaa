"""A gateway in this process with real sockets, on fake instances and any store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from gateway.app import build_app
from gateway.budgets.opening import open_budgets
from gateway.config import GatewaySettings
from gateway.connections import Connections
from gateway.deps import GatewayDeps
from gateway.metering.meter import UsageMeter
from gateway.metering.spool import Spool
from gateway.server import GatewayServer, bind
from gateway.session.registry import SessionRegistry
from gateway.store.base import SessionStore
from gateway.store.budgets import BudgetStore
from gateway.store.memory import MemoryStore
from gateway.tenants.opening import open_authenticator, open_tenants
from gateway.tenants.upstream import FairUpstream
from gateway.tls import open_certificate
from gateway.upstream.base import Upstream
from mesh.clock import Clock, SystemClock
from mesh.telemetry.metrics import GatewayMetrics
from mesh.telemetry.tracing import Tracing
from tests.support.waiting import SURELY_S

__all__ = ["GatewayUnderTest", "Wire", "make_deps", "running_gateway", "wire"]

JSON_PROTOCOL = "seedance.v2.json"


def make_deps(
    upstream: Upstream,
    store: SessionStore | None = None,
    clock: Clock | None = None,
    tracing: Tracing | None = None,
    spool: Spool | None = None,
    budget_store: BudgetStore | None = None,
    **settings: Any,
) -> GatewayDeps:
    """Collaborators for a test: anonymous callers are let in."""
    settings = {"anonymous_tenant": "local", "drain_grace_s": 2, **settings}
    made = GatewaySettings(**settings)
    clock = clock or SystemClock()
    store = store or MemoryStore(clock, made.resume_ttl_s)
    tenants = open_tenants(made, clock)
    metrics = GatewayMetrics()
    return GatewayDeps(
        made,
        clock,
        store,
        FairUpstream(upstream, tenants, clock, made.openings_max),
        tracing or Tracing("gateway", "test"),
        metrics,
        open_authenticator(made, store, tenants, clock),
        UsageMeter(store, clock, spool),
        tenants,
        budgets=open_budgets(made, tenants, clock, metrics, budget_store),
    )


@dataclass
class GatewayUnderTest:
    """A running gateway. `stop` set: it drains and ends."""

    deps: GatewayDeps
    registry: SessionRegistry
    connections: Connections
    stop: asyncio.Event
    port: int
    serving: asyncio.Task[None]
    server: GatewayServer

    @property
    def url(self) -> str:
        scheme = "wss" if self.deps.settings.tls_cert else "ws"
        return f"{scheme}://127.0.0.1:{self.port}/v2/infer"


@asynccontextmanager
async def running_gateway(
    upstream: Upstream, store: SessionStore | None = None, **settings: Any
) -> AsyncIterator[GatewayUnderTest]:
    """A gateway on a free port until the block ends."""
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    deps = make_deps(upstream, store, port=port, **settings)
    registry = SessionRegistry(deps)
    connections = Connections(deps.settings.connections_max, deps.settings.connections_per_address)
    app = build_app(deps, registry, connections)
    certificate = open_certificate(deps.settings.tls_cert, deps.settings.tls_key)
    server = GatewayServer(app, deps.settings, connections, deps.clock, certificate)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        housekeeping = [
            tasks.create_task(registry.run()),
            tasks.create_task(deps.tenants.run(deps.upstream)),
        ]
        if deps.budgets is not None:
            housekeeping.append(tasks.create_task(deps.budgets.run()))
        serving = tasks.create_task(server.run_until(stop, sock))
        try:
            yield GatewayUnderTest(deps, registry, connections, stop, port, serving, server)
        finally:
            stop.set()
            await serving
            await registry.close()
            for task in housekeeping:
                task.cancel()
            await deps.tenants.close()
            await deps.usage.close()


class Wire:
    """A raw client: sends objects, reads objects, keeps everything it read in `seen`."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.seen: list[dict[str, Any]] = []

    async def send(self, **frame: Any) -> None:
        await self.connection.send(json.dumps(frame))

    async def read(self) -> dict[str, Any]:
        """The next frame, within a bound."""
        async with asyncio.timeout(SURELY_S):
            frame = json.loads(await self.connection.recv())
        self.seen.append(frame)
        return frame

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The next frame of a type (and with these fields)."""
        while True:
            frame = await self.read()
            if frame["type"] == kind and all(frame.get(k) == v for k, v in fields.items()):
                return frame

    async def closed(self) -> int:
        """Read to the end; the close code."""
        with suppress(ConnectionClosed):
            async with asyncio.timeout(SURELY_S):
                while True:
                    self.seen.append(json.loads(await self.connection.recv()))
        return self.connection.close_code or 0

    def text(self, stream: str | None = None) -> str:
        """All deltas of a stream (any, when None) that were read."""
        return "".join(
            f["delta"] for f in self.seen if f["type"] == "token" and stream in (None, f["id"])
        )

    @property
    def last_seq(self) -> int:
        return max((f.get("seq", 0) for f in self.seen), default=0)

    def offset(self, stream: str) -> int:
        """Bytes of a stream's text that were read, −1 after its end."""
        own = [f for f in self.seen if f.get("id") == stream]
        if any(f["type"] in ("done", "error") for f in own):
            return -1
        return sum(len(f["delta"].encode()) for f in own if f["type"] == "token")


@asynccontextmanager
async def wire(
    url: str, *, windowed: bool = True, greeting: bool = True, **options: Any
) -> AsyncIterator[Wire]:
    """A raw client's connection; the `session` frame is read already."""
    if windowed:
        options["subprotocols"] = [JSON_PROTOCOL]
    async with connect(url, compression=None, proxy=None, **options) as connection:
        client = Wire(connection)
        if greeting:
            assert (await client.read())["type"] == "session"
        yield client
