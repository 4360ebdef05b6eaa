"""A router inside the test's own loop, on a free port of loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from mesh.clock import SystemClock
from mesh.rpc.server import RpcServer
from mesh.telemetry.tracing import Tracing
from router.config import RouterSettings
from router.service import RouterService
from seedance.v2 import router_pb2_grpc


@contextlib.asynccontextmanager
async def running_router(port: int = 0, **settings: object) -> AsyncIterator[str]:
    """A router's `host:port`; it stops when the block is left."""
    told = RouterSettings(**settings)  # type: ignore[arg-type]
    service = RouterService(told, SystemClock(), Tracing("router", "test"))
    rpc = RpcServer(["seedance.v2.Router"], secret=told.mesh_secret.get_secret_value())
    router_pb2_grpc.add_RouterServicer_to_server(service, rpc.server)  # type: ignore[no-untyped-call]
    bound = await rpc.start(f"127.0.0.1:{port}")
    async with asyncio.TaskGroup() as tasks:
        expiry = tasks.create_task(service.run())
        try:
            yield f"127.0.0.1:{bound}"
        finally:
            expiry.cancel()
            service.close()
            await rpc.drain(0.1)
