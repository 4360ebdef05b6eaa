"""A container's health check: exit 0 when grpc.health.v1 at `host:port` says SERVING.

python is_serving.py 127.0.0.1:7000
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

__all__ = ["serving"]

TIMEOUT_S = 3


def serving(address: str) -> bool:
    """Whether the server at `address` answers SERVING within the time."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    sys.exit(0 if serving(sys.argv[1]) else 1)
