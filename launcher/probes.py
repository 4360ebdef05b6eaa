"""Does a process serve? One question per kind of service, each with a bound."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from launcher.blueprint import ProcessSpec
from mesh.rpc.channel import open_channel
from mesh.rpc.identity import MeshIdentity

__all__ = ["serves"]

PROBE_TIMEOUT_S = 1.0
REPLY_BYTES_MAX = 4_096


async def _grpc(address: str, identity: MeshIdentity | None) -> bool:
    async with open_channel(address, identity) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


async def _exchange(
    address: str, question: bytes, good: bytes, tls: ssl.SSLContext | None = None
) -> bool:
    host, port = address.rsplit(":", 1)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
            try:
                writer.write(question)
                reply = await reader.read(REPLY_BYTES_MAX)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False
    return reply.startswith(good)


def _unverified() -> ssl.SSLContext:
    # The certificate is made out to the name that clients use, which is not loopback's; and what is
    # asked is no secret.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def serves(spec: ProcessSpec, identity: MeshIdentity | None = None) -> bool:
    """Whether the process answers and says that it can serve; False on any doubt."""
    match spec.probe:
        case "grpc":
            return await _grpc(spec.address, identity)
        case "redis":
            return await _exchange(spec.address, b"PING\r\n", b"+PONG")
        case _:
            request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            tls = _unverified() if spec.probe == "https" else None
            return await _exchange(spec.address, request, b"HTTP/1.1 200", tls)
