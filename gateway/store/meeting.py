"""What a gateway and metering tell each other through the store, once a second (the design, §6)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.store.base import GatewayLease, UsageMarks
from mesh.store import BEAT_FIELD, GATEWAYS_KEY, Partitions, committed_key, lease_key
from mesh.store_link import Argument, Command, Reply

__all__ = ["MARKS_MAX", "mark_commands", "meeting_commands", "read_marks"]

# Ids taken at once; the rest is for the next meeting.
MARKS_MAX = 20_000
# What is asked of a stream: oldest entry, length, time.
_SAYING = 3


def meeting_commands(lease: GatewayLease, partitions: Partitions) -> list[Command]:
    """Renew the lease, and look at each partition's stream. `mark_commands` come after the replies."""
    key = lease_key(lease.gateway)
    commands: list[Command] = [("SADD", GATEWAYS_KEY, lease.gateway)]
    if lease.gone:
        commands.append(("HDEL", key, *lease.gone))
    records: list[Argument] = []
    for name, record in lease.connections.items():
        records += (name, record)
    if records:
        commands.append(("HSET", key, *records))
    commands.append(("HSET", key, BEAT_FIELD, lease.beat_ms))
    for partition in range(partitions.count):
        stream = partitions.usage_stream(partition)
        commands += [("XRANGE", stream, "-", "+", "COUNT", 1), ("XLEN", stream), ("TIME",)]
    return commands


def mark_commands(lease: GatewayLease) -> list[Command]:
    """Take the marks. What left a stream before it was looked at is among them, or was before."""
    return [("SPOP", committed_key(g), MARKS_MAX) for g in (lease.gateway, *lease.heir_of)]


def read_marks(
    partitions: Partitions, replies: Sequence[Reply], taken: Sequence[Reply]
) -> UsageMarks:
    """The replies to `meeting_commands` and `mark_commands`."""
    first = len(replies) - _SAYING * partitions.count
    parts = [replies[at : at + _SAYING] for at in range(first, len(replies), _SAYING)]
    return UsageMarks(
        committed=frozenset(name.decode() for marks in taken for name in marks),
        complete=all(len(marks) < MARKS_MAX for marks in taken),
        oldest_waiting_s=max(_age_s(oldest, time) for oldest, _, time in parts),
        waiting=sum(int(length) for _, length, _ in parts),
        lease_was_gone=bool(replies[first - 1]),
    )


def _age_s(oldest: Reply, time: Reply) -> float:
    """How long the oldest entry waits, by the clock of its node; 0: there is none."""
    if not oldest:
        return 0.0
    seconds, micros = time
    told_ms = int(oldest[0][0].split(b"-")[0])
    return max(0, int(seconds) * 1000 + int(micros) // 1000 - told_ms) / 1000
