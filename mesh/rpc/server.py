"""A gRPC server as every service runs it: health, reflection, keepalive, drain."""

from __future__ import annotations

from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mesh.rpc.channel import server_options
from mesh.rpc.identity import MeshIdentity
from mesh.rpc.secret import SecretGate
from mesh.settings import exit_with

__all__ = ["RpcServer"]


class RpcServer:
    """Owns a `grpc.aio.Server` with health and reflection for the named services.

    Register servicers on `.server`, then `start()`; `drain()` says NOT_SERVING, refuses new calls
    and lets running ones go on for the grace time. With an `identity` only its mesh gets in; with a
    `secret` only calls that show it are answered.
    """

    def __init__(
        self, service_names: Sequence[str], identity: MeshIdentity | None = None, secret: str = ""
    ) -> None:
        gates = [SecretGate(secret)] if secret else []
        self.server = grpc.aio.server(options=server_options(), interceptors=gates)
        self.health = health.aio.HealthServicer()
        self.port = 0
        self._identity = identity
        self._names = [*service_names, ""]
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        reflection.enable_server_reflection(
            (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self.server
        )

    async def start(self, address: str) -> int:
        """Listen on `host:port` (port 0: any) and say SERVING; returns the port.

        A port in use ends the process with one line that says so.
        """
        try:
            self.port = self._listen(address)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            exit_with(f"cannot listen on {address}: is the port in use? Choose another with --port")
        await self.server.start()
        await self._set(health_pb2.HealthCheckResponse.SERVING)
        return self.port

    def _listen(self, address: str) -> int:
        if self._identity is None:
            return self.server.add_insecure_port(address)
        return self.server.add_secure_port(address, self._identity.server_credentials())

    async def drain(self, grace_s: float) -> None:
        """Say NOT_SERVING, take nothing new, and stop when calls have ended or the grace is over."""
        await self._set(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.server.stop(grace_s)

    async def _set(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in self._names:
            await self.health.set(name, status)
