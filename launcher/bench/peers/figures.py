"""What clients measured, as figures and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Round", "Timing", "percentile", "table"]

_MS = 1e3
_HEAD = (
    "streams",
    "server",
    "tokens/s",
    "× ours",
    "TTFT p50 ms",
    "p99",
    "× ours p99",
    "inter-token p50 ms",
    "p99",
    "finished",
)


@dataclass(slots=True)
class Timing:
    """One request as its client saw it: `begun` and the arrivals in seconds of one clock.

    `tokens` is what came, by the server's own count where it tells one. A request that was cut short
    by the time limit is not `finished`; without a first token its wait so far stands for its TTFT.
    """

    begun: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    finished: bool = False

    def heard(self, now: float, tokens: int = 1) -> None:
        """Text came."""
        self.arrivals.append(now)
        self.tokens += tokens

    def ttft_s(self, now: float) -> float:
        """Time to the first token, or at least that."""
        return (self.arrivals[0] if self.arrivals else now) - self.begun


@dataclass(frozen=True, slots=True)
class Round:
    """One server under so many clients, from `begun` to `ended`."""

    server: str
    streams: int
    begun: float
    ended: float
    timings: Sequence[Timing]
    failures: int = 0

    @property
    def tokens_per_s(self) -> float:
        """All tokens of all clients, over the wall."""
        return sum(t.tokens for t in self.timings) / (self.ended - self.begun)

    @property
    def finished(self) -> str:
        """How many requests ended, of how many."""
        done = sum(t.finished for t in self.timings)
        failed = f", {self.failures} failed" if self.failures else ""
        return f"{done}/{len(self.timings)}{failed}"

    def ttft_ms(self, share: float) -> float:
        """A percentile of the times to the first token."""
        return percentile([t.ttft_s(self.ended) for t in self.timings], share) * _MS

    def gap_ms(self, share: float) -> float:
        """A percentile of the times between two arrivals of one request."""
        gaps = [b - a for t in self.timings for a, b in pairwise(t.arrivals)]
        return percentile(gaps, share) * _MS


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed (nearest rank); NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def _times(value: float, base: float) -> str:
    return "–" if math.isnan(value) or not base else f"{value / base:.2f}"


def table(rounds: Sequence[Round]) -> list[str]:
    """Markdown lines; the first server of each number of streams is what the others are related to."""
    lines = ["| " + " | ".join(_HEAD) + " |", "| ---: | --- |" + " ---: |" * (len(_HEAD) - 2)]
    for streams in sorted({r.streams for r in rounds}):
        group = [r for r in rounds if r.streams == streams]
        ours = group[0]
        for r in group:
            cells = (
                str(streams),
                r.server,
                f"{r.tokens_per_s:.0f}",
                _times(r.tokens_per_s, ours.tokens_per_s),
                f"{r.ttft_ms(0.5):.0f}",
                f"{r.ttft_ms(0.99):.0f}",
                _times(r.ttft_ms(0.99), ours.ttft_ms(0.99)),
                f"{r.gap_ms(0.5):.1f}",
                f"{r.gap_ms(0.99):.1f}",
                r.finished,
            )
            lines.append("| " + " | ".join(cells) + " |")
    return lines
