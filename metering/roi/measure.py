"""What a log's traffic was: counts, waiting times, bursts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from metering.invoice.quantities import ConnectionSpan, ModelTokens, Quantities, sum_connections
from metering.roi.access_log import Access

__all__ = ["Bursts", "Traffic", "bursts_of", "measure"]

MINUTE_MS = 60_000
ERROR_STATUS_MIN = 400
# A log of a hundred years is a clock that is wrong.
MINUTES_MAX = 60 * 24 * 366
COOL_DOWN_FACTOR = Fraction(3, 2)
MODEL = "log"


@dataclass(frozen=True, slots=True)
class Traffic:
    """A log's figures. `per_minute` has every minute from the first to the last."""

    requests: int
    errors: int
    from_ms: int
    until_ms: int
    p50_ms: int | None
    p99_ms: int | None
    per_minute: tuple[int, ...]
    quantities: Quantities
    has_tokens: bool
    has_seconds: bool
    has_bytes: bool

    @property
    def span_ms(self) -> int:
        """From the first minute's begin to the last one's end."""
        return self.until_ms - self.from_ms

    @property
    def mean_per_minute(self) -> Fraction:
        """Requests in a minute, on average."""
        return Fraction(self.requests, len(self.per_minute))

    @property
    def burst_factor(self) -> Fraction:
        """The busiest minute over the average one."""
        return max(self.per_minute) / self.mean_per_minute


@dataclass(frozen=True, slots=True)
class Bursts:
    """A what-if: more instances run while a minute has over `threshold` times the average.

    `cool_down_min` is 1.5 times the longest burst, so that a burst which pauses is not paid twice
    in starts; with it there are `starts` scale-outs, and `extra_min` minutes of more instances.
    """

    threshold: Fraction
    bursts: int
    longest_min: int
    cool_down_min: int
    starts: int
    extra_min: int


def measure(accesses: Iterable[Access]) -> Traffic | None:
    """The figures of a log, or None when it has no request.

    Raises `ValueError` when it spans more than a year. A request is taken for a connection of its
    own: a log knows no more.
    """
    spans: list[ConnectionSpan] = []
    durations: list[int] = []
    minutes: Counter[int] = Counter()
    tokens = [0, 0, 0]
    errors = 0
    seen_tokens = seen_bytes = False
    for access in accesses:
        minutes[access.ended_ms // MINUTE_MS] += 1
        errors += access.status >= ERROR_STATUS_MIN
        seen_bytes |= access.bytes is not None
        seen_tokens |= access.completion_tokens is not None
        counts = (access.prompt_tokens, access.cached_tokens, access.completion_tokens)
        tokens = [total + (count or 0) for total, count in zip(tokens, counts, strict=True)]
        if access.duration_ms is not None:
            durations.append(access.duration_ms)
        spans.append(_span(access))
    if not spans:
        return None
    first, last = min(minutes), max(minutes)
    if last - first >= MINUTES_MAX:
        raise ValueError("the log spans more than a year")
    spans.sort(key=lambda span: span.opened_ms)
    durations.sort()
    begin, end = first * MINUTE_MS, (last + 1) * MINUTE_MS
    # A request that began before the log's first minute counts whole.
    sums = sum_connections(spans, min(begin, spans[0].opened_ms), end)
    used = (ModelTokens(MODEL, *tokens),) if seen_tokens else ()
    return Traffic(
        requests=len(spans),
        errors=errors,
        from_ms=begin,
        until_ms=end,
        p50_ms=_percentile(durations, 50),
        p99_ms=_percentile(durations, 99),
        per_minute=tuple(minutes[minute] for minute in range(first, last + 1)),
        quantities=Quantities(used, len(spans), sums),
        has_tokens=seen_tokens,
        has_seconds=bool(durations),
        has_bytes=seen_bytes,
    )


def bursts_of(traffic: Traffic, threshold: Fraction) -> Bursts:
    """What scaling out at `threshold` times the average would have done."""
    limit = traffic.mean_per_minute * threshold
    runs = _runs([count > limit for count in traffic.per_minute])
    longest = max((end - begin for begin, end in runs), default=0)
    cool_down = math.ceil(longest * COOL_DOWN_FACTOR)
    starts = extra = until = 0
    for begin, end in runs:
        starts += begin >= until
        extra += end + cool_down - max(begin, until)
        until = end + cool_down
    return Bursts(threshold, len(runs), longest, cool_down, starts, extra)


def _span(access: Access) -> ConnectionSpan:
    begin = access.ended_ms - (access.duration_ms or 0)
    samples = 0 if access.rtt_us is None else 1
    return ConnectionSpan(begin, access.ended_ms, access.bytes or 0, access.rtt_us or 0, samples)


def _percentile(ordered: Sequence[int], percent: int) -> int | None:
    """By nearest rank: a value that was measured."""
    if not ordered:
        return None
    return ordered[math.ceil(Fraction(len(ordered) * percent, 100)) - 1]


def _runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    begin: int | None = None
    for at, flag in enumerate([*flags, False]):
        if flag and begin is None:
            begin = at
        elif not flag and begin is not None:
            runs.append((begin, at))
            begin = None
    return runs
