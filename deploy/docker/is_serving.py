"""A container's health check: exit 0 when grpc.health.v1 at `host:port` says SERVING.

python is_serving.py 127.0.0.1:7000

With SEEDANCE_MTLS_CERT, _KEY and _CA set it shows the service's own certificate.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

__all__ = ["serving"]

TIMEOUT_S = 3


def _channel(address: str) -> grpc.Channel:
    files = [os.environ.get(f"SEEDANCE_MTLS_{part}", "") for part in ("CA", "KEY", "CERT")]
    if not all(files):
        return grpc.insecure_channel(address)
    credentials = grpc.ssl_channel_credentials(*(Path(file).read_bytes() for file in files))
    name = os.environ.get("SEEDANCE_MTLS_NAME", "")
    options = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.secure_channel(address, credentials, options)


def serving(address: str) -> bool:
    """Whether the server at `address` answers SERVING within the time."""
    with _channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    sys.exit(0 if serving(sys.argv[1]) else 1)
