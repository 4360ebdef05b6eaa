"""The connection to the store (Redis or Valkey), as every service opens it."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

__all__ = ["COMMAND_TIMEOUT_S", "USAGE_PAYLOAD_FIELD", "USAGE_STREAM", "open_store"]

# The stream of usage events: gateways append, metering's consumer group reads.
USAGE_STREAM = "seedance:usage"
USAGE_PAYLOAD_FIELD = "payload"

CONNECT_TIMEOUT_S = 1.0
COMMAND_TIMEOUT_S = 2.0
CONNECTIONS_MAX = 32


def open_store(url: str, command_timeout_s: float | None = COMMAND_TIMEOUT_S) -> Redis:
    """A client for `redis://host:port/db`, `rediss://…` or `unix:///path`; connects when first used.

    Nothing is tried twice: a write whose answer was lost may have happened, and only its caller
    knows whether it may happen again. `command_timeout_s` None: the caller bounds each command; the
    library's own limit can swallow a cancellation on Python 3.11 (`asyncio.wait_for`). Raises `ValueError` for a URL of another kind.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=CONNECTIONS_MAX,
        timeout=COMMAND_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=command_timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    return Redis.from_pool(pool)
