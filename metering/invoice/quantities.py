"""What a tenant used in a span of time, as whole numbers: what prices are applied to."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "RTT_UNITS_PER_MS",
    "ConnectionSpan",
    "ConnectionSums",
    "ModelTokens",
    "Quantities",
    "sum_connections",
]

# 2520 is divisible by every number of samples from 1 to 10 (an event has no more): averages of round trips, counted in
# 2520ths of a microsecond, are whole numbers, and their sums exact.
_SAMPLE_UNITS = 2520
RTT_UNITS_PER_MS = _SAMPLE_UNITS * 1000
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class ModelTokens:
    """Tokens of one model; `prompt` includes `cached`."""

    model: str
    prompt: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class ConnectionSpan:
    """A connection as it is billed: [opened, ended), ESTABLISHED through CLOSE_WAIT."""

    opened_ms: int
    ended_ms: int
    bytes: int
    rtt_us_sum: int
    rtt_samples: int

    def rtt_units(self) -> int:
        """The average of its last round trips, in 2520ths of a microsecond; 0: never measured."""
        if not self.rtt_samples:
            return 0
        return self.rtt_us_sum * (_SAMPLE_UNITS // self.rtt_samples)


@dataclass(frozen=True, slots=True)
class ConnectionSums:
    """Connections within [from, until).

    `open_ms`: time they were open within the span. `bytes` and `rtt_byte_units` (average round trip
    x bytes) belong to the span in which a connection ended. `peak`: most at one moment, first
    reached in the minute that begins at `peak_minute_ms`.
    """

    open_ms: int = 0
    bytes: int = 0
    rtt_byte_units: int = 0
    peak: int = 0
    peak_minute_ms: int = 0


@dataclass(frozen=True, slots=True)
class Quantities:
    """Everything a plan may charge for."""

    tokens: tuple[ModelTokens, ...] = ()
    requests: int = 0
    connections: ConnectionSums = ConnectionSums()

    def nothing(self) -> bool:
        """Whether there is nothing to charge for."""
        return self == Quantities()


def sum_connections(spans: Iterable[ConnectionSpan], from_ms: int, until_ms: int) -> ConnectionSums:
    """Sum connections that come in the order of their opening; keeps only the open ones' ends."""
    open_ms = total_bytes = rtt_byte_units = peak = peak_at = 0
    ends: list[int] = []
    for span in spans:
        if from_ms <= span.ended_ms < until_ms:
            total_bytes += span.bytes
            rtt_byte_units += span.bytes * span.rtt_units()
        begin, end = max(span.opened_ms, from_ms), min(span.ended_ms, until_ms)
        if begin >= end:
            continue
        open_ms += end - begin
        # One that ends at the moment another opens leaves room for it.
        while ends and ends[0] <= begin:
            heapq.heappop(ends)
        heapq.heappush(ends, end)
        if len(ends) > peak:
            peak, peak_at = len(ends), begin
    return ConnectionSums(open_ms, total_bytes, rtt_byte_units, peak, peak_at - peak_at % MINUTE_MS)
