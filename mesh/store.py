"""The connection to the store (Redis or Valkey), as every service opens it."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

__all__ = [
    "BEAT_FIELD",
    "COMMAND_TIMEOUT_S",
    "GATEWAYS_KEY",
    "USAGE_PAYLOAD_FIELD",
    "USAGE_STREAM",
    "committed_key",
    "lease_key",
    "open_store",
]

# The stream of usage events: gateways append, metering's consumer group reads, and deletes an entry
# when the ledger has it: what is in the stream waits.
USAGE_STREAM = "seedance:usage"
USAGE_PAYLOAD_FIELD = "payload"
# The start ids of gateways that have a lease.
GATEWAYS_KEY = "seedance:gateways"
# A lease's field with the gateway's monotonic clock in ms; its others are connections by name.
BEAT_FIELD = "beat"


def committed_key(gateway: str) -> str:
    """The set of ids of a gateway's events that the ledger has; the gateway takes them out.

    On the node of the usage stream, so that both change in one transaction.
    """
    return f"{{{USAGE_STREAM}}}:committed:{gateway}"


def lease_key(gateway: str) -> str:
    """The hash that a gateway renews while it lives.

    A connection's field is JSON: `tenant`, `opened_ms` (Unix), `opened_at_ms` (on the clock of `beat`),
    `bytes_in`, `bytes_out`, `rtt_us` (the last samples), as of the renewal that followed traffic.
    """
    return f"seedance:gateway:{gateway}"


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
