"""`python -m router`: one router process."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Sequence

from mesh.clock import SystemClock
from mesh.flags import settings_from_flags
from mesh.lifecycle import die_with_parent, run_service
from mesh.rpc.identity import identity_of
from mesh.rpc.server import RpcServer
from mesh.telemetry.logs import setup_logs
from mesh.telemetry.tracing import Tracing
from router.config import RouterSettings
from router.service import RouterService
from seedance.v2 import router_pb2, router_pb2_grpc

__all__ = ["main", "serve"]


async def serve(settings: RouterSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain."""
    tracing = Tracing(
        "router",
        secrets.token_hex(4),
        endpoint=settings.otlp_endpoint,
        ratio=settings.trace_ratio,
    )
    service = RouterService(settings, SystemClock(), tracing)
    name = router_pb2.DESCRIPTOR.services_by_name["Router"].full_name
    rpc = RpcServer([name], identity_of(settings), settings.mesh_secret.get_secret_value())
    router_pb2_grpc.add_RouterServicer_to_server(  # type: ignore[no-untyped-call]
        service, rpc.server
    )
    port = await rpc.start(f"{settings.host}:{settings.port}")
    if settings.announce:
        sys.stdout.write(f"ready {settings.host}:{port}\n")
        sys.stdout.flush()
    async with asyncio.TaskGroup() as tasks:
        expiry = tasks.create_task(service.run())
        await stop.wait()
        expiry.cancel()
        service.close()
        await rpc.drain(settings.drain_grace_s)
    tracing.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Read the settings and serve."""
    settings = settings_from_flags(
        RouterSettings,
        "python -m router",
        "Keeps the membership of inference instances and names the one for a key.",
        argv,
    )
    if settings.die_with_parent:
        die_with_parent()
    setup_logs(settings.log_level, as_json=settings.log_json)
    run_service(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
