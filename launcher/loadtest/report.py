"""What a run found, as data and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.loadtest.load import Load, Target
from launcher.loadtest.sketch import Sketch
from launcher.loadtest.tally import Tally

__all__ = ["BUSY_SHARE", "SHARES", "TIMES", "Measured", "as_json", "markdown", "milliseconds"]

FORMAT = 1
SHARES = (0.5, 0.95, 0.99)
# Above this share of a core the client, too, may be what is slow.
BUSY_SHARE = 0.8
TIMES = {
    "handshake": "handshake",
    "ttft": "first token",
    "gap": "between tokens",
    "total": "whole answer",
    "back": "reconnect and resume",
}
_MS = 1e3


@dataclass(frozen=True, slots=True)
class Measured:
    """One target's run, or several rounds of it. `proof`: what the exactness was compared with."""

    target: Target
    tally: Tally
    proof: str
    warnings: list[str] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Within the run itself, without what came while it drained."""
        return self.tally.in_time / self.tally.elapsed_s if self.tally.elapsed_s else 0.0

    def by_second(self, duration_s: int) -> list[float]:
        """Tokens in each second of the run; the mean of several rounds."""
        rounds = max(1, round(self.tally.elapsed_s / duration_s))
        return [self.tally.seconds[second] / rounds for second in range(duration_s)]

    @property
    def cpu_share(self) -> float:
        """How much of a core this program used."""
        return self.tally.cpu_s / self.tally.elapsed_s if self.tally.elapsed_s else 0.0

    @property
    def failed(self) -> int:
        """Requests and connections that came to nothing, by whatever code."""
        return self.tally.errors.total()

    @property
    def exactness(self) -> str:
        """How many answers were what they must be, of those that could be compared."""
        compared = self.tally.exact + self.tally.inexact
        return f"{self.tally.exact}/{compared}" if compared else "not compared"


def milliseconds(sketch: Sketch, share: float) -> float | None:
    """A percentile, rounded to what the sketch is good for; None where nothing was measured."""
    value = sketch.quantile(share) * _MS
    return None if math.isnan(value) else float(f"{value:.3g}")


def _times(tally: Tally) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in TIMES:
        sketch: Sketch = getattr(tally, name)
        made[name] = {"count": sketch.count}
        made[name] |= {f"p{share * 100:g}_ms": milliseconds(sketch, share) for share in SHARES}
        made[name]["max_ms"] = round(sketch.largest * _MS, 3)
    return made


def as_json(load: Load, measured: Sequence[Measured]) -> dict[str, Any]:
    """Everything, without the keys of API callers."""
    targets = []
    for one in measured:
        tally = one.tally
        targets.append(
            {
                "name": one.target.name,
                "face": one.target.face.value,
                "asked": tally.asked,
                "answered": tally.answered,
                "errors": dict(tally.errors),
                "exact": tally.exact,
                "inexact": tally.inexact,
                "exactness_against": one.proof,
                "tokens": tally.tokens,
                "tokens_per_s": round(one.tokens_per_s, 1),
                "times": _times(tally),
                "tokens_by_second": one.by_second(load.duration_s),
                "client_cpu_share": round(one.cpu_share, 3),
                "warnings": one.warnings,
            }
        )
    return {"format": FORMAT, "load": asdict(load), "targets": targets, "ratios": _ratios(measured)}


def _ratio(value: float | None, base: float | None) -> float | None:
    return float(f"{value / base:.3g}") if value and base else None


def _ratios(measured: Sequence[Measured]) -> dict[str, float | None]:
    """The second target's figures over the first's: tokens/s and p50, p99 of the times."""
    if len(measured) != 2:  # noqa: PLR2004 - a side-by-side run
        return {}
    ours, theirs = measured
    made = {"tokens_per_s": _ratio(theirs.tokens_per_s, ours.tokens_per_s)}
    for name in ("ttft", "gap", "total"):
        for share in (0.5, 0.99):
            pair = (milliseconds(getattr(m.tally, name), share) for m in (theirs, ours))
            made[f"{name}_p{share * 100:g}"] = _ratio(*pair)
    return made


def _cell(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:,g}{unit}"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def markdown(load: Load, measured: Sequence[Measured]) -> str:
    """Tables: what was done, times, and with two targets their ratios."""
    lines = [_told(load), "", *_summary(measured), ""]
    for one in measured:
        lines += [f"Times of {one.target.name}, ms:", "", *_table_of_times(one.tally), ""]
        if one.tally.errors:
            said = (f"{count} {code}" for code, count in one.tally.errors.most_common())
            lines += ["Errors: " + ", ".join(said) + ".", ""]
        lines += [f"Warning: {warning}." for warning in one.warnings]
    if len(measured) == 2:  # noqa: PLR2004 - a side-by-side run
        lines += ["The second over the first:", "", *_table_of_ratios(measured)]
    return "\n".join(lines).strip()


def _told(load: Load) -> str:
    said = f"{load.connections:,} connections, {load.arrivals.value} arrivals"
    if load.arrivals.value != "closed":
        said += f" of {load.rate:g} requests/s"
    said += f", {load.max_tokens} tokens an answer, {load.duration_s} s"
    if load.slow_share:
        said += f", {load.slow_share:.0%} slow readers"
    if load.storm_at_s:
        said += f", {load.storm_share:.0%} of the connections cut after {load.storm_at_s:g} s"
    return said + "."


def _summary(measured: Sequence[Measured]) -> list[str]:
    lines = [
        _row("target", "tokens/s", "asked", "answered", "errors", "exact", "client's CPU"),
        "| --- |" + " ---: |" * 6,
    ]
    for one in measured:
        tally = one.tally
        figures = (f"{one.tokens_per_s:,.0f}", f"{tally.asked:,}", f"{tally.answered:,}")
        rest = (f"{one.failed:,}", one.exactness, f"{one.cpu_share:.0%}")
        lines.append(_row(one.target.name, *figures, *rest))
    return lines


def _table_of_times(tally: Tally) -> list[str]:
    names = [f"p{share * 100:g}" for share in SHARES]
    lines = [_row("", *names, "max", "count"), "| --- |" + " ---: |" * 5]
    for name, title in TIMES.items():
        sketch: Sketch = getattr(tally, name)
        if sketch.count:
            cells = (_cell(milliseconds(sketch, share)) for share in SHARES)
            largest = _cell(float(f"{sketch.largest * _MS:.3g}"))
            lines.append(_row(title, *cells, largest, f"{sketch.count:,}"))
    return lines


def _table_of_ratios(measured: Sequence[Measured]) -> list[str]:
    lines = [_row("", "times"), "| --- | ---: |"]
    for name, ratio in _ratios(measured).items():
        kind, _, share = name.partition("_p")
        title = "tokens/s" if name == "tokens_per_s" else f"{TIMES[kind]}, p{share}"
        lines.append(_row(title, _cell(ratio)))
    return lines
