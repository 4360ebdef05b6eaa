"""What a gateway and metering tell each other through the store, once a second (the design, §6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.store.base import GatewayLease, UsageMarks
from mesh.store import BEAT_FIELD, GATEWAYS_KEY, USAGE_STREAM, committed_key, lease_key

__all__ = ["MARKS_MAX", "meeting_commands", "read_marks"]

# Ids taken at once; the rest is for the next meeting.
MARKS_MAX = 20_000
# The last replies say something: beat, time, oldest entry, length, and marks of each gateway.
_SAYING = 5

Argument = bytes | str | int
Command = tuple[Argument, ...]


def meeting_commands(lease: GatewayLease) -> list[Command]:
    """Renew the lease, then look at the stream, then take the marks: in this order.

    What left the stream before it was looked at is then among the marks, or in a former answer.
    """
    key = lease_key(lease.gateway)
    commands: list[Command] = [("SADD", GATEWAYS_KEY, lease.gateway)]
    if lease.gone:
        commands.append(("HDEL", key, *lease.gone))
    records: list[Argument] = []
    for name, record in lease.connections.items():
        records += (name, record)
    if records:
        commands.append(("HSET", key, *records))
    return [
        *commands,
        ("HSET", key, BEAT_FIELD, lease.beat_ms),
        ("TIME",),
        ("XRANGE", USAGE_STREAM, "-", "+", "COUNT", 1),
        ("XLEN", USAGE_STREAM),
        ("SPOP", committed_key(lease.gateway), MARKS_MAX),
        *(("SPOP", committed_key(gateway), MARKS_MAX) for gateway in lease.heir_of),
    ]


def read_marks(lease: GatewayLease, replies: Sequence[Any]) -> UsageMarks:
    """The replies to `meeting_commands`."""
    said = replies[-_SAYING - len(lease.heir_of) :]
    beat_made, (seconds, micros), oldest, waiting, *marks = said
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    oldest_ms = int(oldest[0][0].split(b"-")[0]) if oldest else now_ms
    return UsageMarks(
        committed=frozenset(name.decode() for taken in marks for name in taken),
        complete=all(len(taken) < MARKS_MAX for taken in marks),
        oldest_waiting_s=max(0, now_ms - oldest_ms) / 1000,
        waiting=int(waiting),
        lease_was_gone=bool(beat_made),
    )
