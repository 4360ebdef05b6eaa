"""What is where in the store (Redis or Valkey): the keys that more than one service knows.

The store is divided into partitions. A session, its bills and metering's word of them are of one
partition, and the keys of a partition are on one node: a script that writes a session's end and its
bill touches one node of a cluster. An undivided store is one partition, on one server.
"""

from __future__ import annotations

import zlib

from redis.exceptions import RedisError

from mesh.store_link import Command, Reply, StoreMisfitError, is_cluster, open_link

__all__ = [
    "BEAT_FIELD",
    "CLUSTER_PARTITIONS",
    "GATEWAYS_KEY",
    "PARTITIONS_MAX",
    "REDIS_URL_PATTERN",
    "USAGE_PAYLOAD_FIELD",
    "Partitions",
    "check_store",
    "committed_key",
    "lease_key",
    "partitions_of",
]

REDIS_URL_PATTERN = r"^(rediss?(\+cluster)?|unix)://"

USAGE_PAYLOAD_FIELD = "payload"
# The start ids of gateways that have a lease.
GATEWAYS_KEY = "seedance:gateways"
# A lease's field with the gateway's monotonic clock in ms; its others are connections by name.
BEAT_FIELD = "beat"

# Of a cluster that nobody gave another number: as many nodes share the sessions at most.
CLUSTER_PARTITIONS = 16
PARTITIONS_MAX = 256
_PARTITIONS_KEY = "seedance:partitions"


def lease_key(gateway: str) -> str:
    """The hash that a gateway renews while it lives.

    A connection's field is JSON: `tenant`, `opened_ms` (Unix), `opened_at_ms` (on the clock of `beat`),
    `bytes_in`, `bytes_out`, `rtt_us` (the last samples), as of the renewal that followed traffic.
    """
    return f"seedance:gateway:{gateway}"


def committed_key(gateway: str) -> str:
    """The set of ids of a gateway's events that the ledger has; the gateway takes them out."""
    return f"{{seedance:usage}}:committed:{gateway}"


def partitions_of(url: str, count: int) -> Partitions:
    """How the store at `url` is divided; `count` 0: as its kind needs. Raises `ValueError`."""
    if is_cluster(url) and count == 1:
        raise ValueError("a store that is a cluster needs more than one partition")
    return Partitions(count or (CLUSTER_PARTITIONS if is_cluster(url) else 1))


async def check_store(url: str, partitions: Partitions) -> None:
    """Raise `StoreMisfitError` when the store is not what the settings say; one that is away may be."""
    link = open_link(url)
    try:
        partitions.agreed(await link.ask(partitions.agreeing()))
    except StoreMisfitError:
        raise
    except (RedisError, OSError):
        return
    finally:
        await link.close()


class Partitions:
    """The names of what is divided, by partition, 0 to `count` - 1."""

    def __init__(self, count: int = 1) -> None:
        self.count = count

    def of(self, name: str) -> int:
        """The partition of a session or an event."""
        if self.count == 1:
            return 0
        return zlib.crc32(name.encode(errors="surrogatepass")) % self.count

    def session_key(self, session: str) -> str:
        """The session's hash, from which its other keys are named; the braces are their hash tag."""
        if self.count == 1:
            return f"seedance:{{{session}}}"
        return f"{self._prefix(self.of(session))}:session:{session}"

    def usage_stream(self, partition: int) -> str:
        """The stream of usage events: gateways append, metering's consumer group reads.

        An entry is deleted when the ledger has it: what is in the stream waits.
        """
        return f"{self._prefix(partition)}:usage"

    def mark_key(self, partition: int) -> str:
        """What is gone when the partition has lost its data."""
        return f"{self._prefix(partition)}:generation"

    def agreeing(self) -> list[Command]:
        """Commands that write down how the store is divided, unless somebody has, and ask."""
        key = _PARTITIONS_KEY
        return [("SET", key, self.count, "NX"), ("GET", key), ("INFO", "server")]

    def agreed(self, replies: list[Reply]) -> None:
        """Their replies. Raises `StoreMisfitError` when the store is divided otherwise."""
        _, number, about = replies
        if self.count == 1 and b"_mode:cluster" in about:  # `redis_` or `server_`
            raise StoreMisfitError("the store is a cluster: its URL begins with redis+cluster://")
        found = int(number)
        if found != self.count:
            raise StoreMisfitError(
                f"the store is divided into {found} partitions, not {self.count}: "
                f"say --store-partitions {found}, or empty it"
            )

    def _prefix(self, partition: int) -> str:
        return "seedance" if self.count == 1 else f"seedance:{{{partition}}}"
