"""The report as one self-contained page with charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from launcher.loadtest.load import Load
from launcher.loadtest.report import BUSY_SHARE, SHARES, TIMES, Measured, milliseconds
from launcher.loadtest.sketch import Sketch
from metering.paper.sheet import Markup, element, facts, join, row, sheet

__all__ = ["to_html"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT = 760, 170, 64, 20
# The percentiles of the curves: evenly by how many nines they have.
_CURVE = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999)
_COLOURS = ("#5b3df0", "#b45f06")
_CHARTED = ("ttft", "gap", "handshake")


def to_html(load: Load, measured: Sequence[Measured]) -> bytes:
    """The page."""
    parts: list[Markup] = [_header(measured), facts(_facts(load, measured[0]))]
    parts += [element("h2", "Tokens a second, over the run"), _legend(measured)]
    parts.append(_throughput(load, measured))
    for name in _CHARTED:
        sketches: list[Sketch] = [getattr(one.tally, name) for one in measured]
        if any(sketch.count for sketch in sketches):
            parts += [element("h2", f"{TIMES[name].capitalize()}: percentiles"), _curves(sketches)]
    parts += [element("h2", "Times in milliseconds"), _times(measured)]
    if any(one.tally.errors for one in measured):
        parts += [element("h2", "Errors by code"), _errors(measured)]
    parts.append(_notes(measured))
    return sheet("Load test", parts)


def _header(measured: Sequence[Measured]) -> Markup:
    names = " beside ".join(one.target.name for one in measured)
    left = join((element("p", "Seedance", class_="brand"), element("h1", "Load test"),
                 element("p", names, class_="quiet")))  # fmt: skip
    speed = f"{measured[0].tokens_per_s:,.0f}"
    right = join((element("span", "tokens/s", class_="quiet"), element("strong", speed)))
    return element("header", join((element("div", left), element("div", right, class_="sum"))))


def _facts(load: Load, first: Measured) -> dict[str, str]:
    tally = first.tally
    return {
        "Connections": f"{load.connections:,}",
        "Arrivals": load.arrivals.value,
        "Seconds": f"{load.duration_s:,}",
        "Asked": f"{tally.asked:,}",
        "Answered": f"{tally.answered:,}",
        "Errors": f"{first.failed:,}",
        "Exact": first.exactness,
        "Client's CPU": f"{first.cpu_share:.0%} of a core",
    }


def _legend(measured: Sequence[Measured]) -> Markup:
    if len(measured) == 1:
        return Markup("")
    named = (
        element("span", f"■ {one.target.name}\u2003", style=f"color:{colour}")
        for one, colour in zip(measured, _COLOURS, strict=False)
    )
    return element("p", join(named))


def _throughput(load: Load, measured: Sequence[Measured]) -> Markup:
    lines = [one.by_second(load.duration_s) for one in measured]
    highest = max((max(line) for line in lines), default=0.0) or 1.0
    step = (_WIDTH - _LEFT - _RIGHT) / max(load.duration_s - 1, 1)
    parts = _grid(highest, "")
    for line, colour in zip(lines, _COLOURS, strict=False):
        points = [(_LEFT + at * step, _y(value / highest)) for at, value in enumerate(line)]
        parts.append(_polyline(points, colour))
    ends = ((_LEFT, "0 s"), (_WIDTH - _RIGHT, f"{load.duration_s} s"))
    return _svg([*parts, *_across(ends)], "Tokens a second, over the run")


def _curves(sketches: Sequence[Sketch]) -> Markup:
    values = [[sketch.quantile(share) * 1e3 for share in _CURVE] for sketch in sketches]
    highest = max((v[-1] for v in values if not math.isnan(v[-1])), default=1.0) or 1.0
    parts = _grid(highest, " ms")
    step = (_WIDTH - _LEFT - _RIGHT) / (len(_CURVE) - 1)
    parts += _across((_LEFT + at * step, f"p{share * 100:g}") for at, share in enumerate(_CURVE))
    for line, colour in zip(values, _COLOURS, strict=False):
        points = [(_LEFT + at * step, _y(v / highest)) for at, v in enumerate(line) if v == v]  # noqa: PLR0124 - no NaN
        parts.append(_polyline(points, colour))
    return _svg(parts, "Percentiles")


def _across(labels: Iterable[tuple[float, str]]) -> list[Markup]:
    y = str(_HEIGHT + 34)
    return [element("text", text, class_="x", x=f"{x:.1f}", y=y) for x, text in labels]


def _y(share: float) -> float:
    return 14 + _HEIGHT * (1 - share)


def _grid(highest: float, unit: str) -> list[Markup]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = f"{_y(share):.1f}"
        parts.append(element("line", class_="axis", x1=str(_LEFT), x2=str(_WIDTH), y1=y, y2=y))
        label = f"{float(f'{highest * share:.3g}'):,g}{unit}"
        y = f"{_y(share) + 4:.1f}"
        parts.append(element("text", label, class_="y", x=str(_LEFT - 14), y=y))
    return parts


def _polyline(points: Sequence[tuple[float, float]], colour: str) -> Markup:
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", points=shown, fill="none", stroke=colour, stroke_width="2")


def _svg(parts: Sequence[Markup], label: str) -> Markup:
    box = f"0 0 {_WIDTH} {_HEIGHT + 40}"
    return element("svg", join(parts), class_="chart", viewBox=box, role="img", aria_label=label)


def _times(measured: Sequence[Measured]) -> Markup:
    head = row(("", *(f"p{share * 100:g}" for share in SHARES), "Count"), 1, tag="th")
    rows = []
    for one in measured:
        if len(measured) > 1:
            rows.append(element("tr", element("th", one.target.name, colspan="5")))
        for name, title in TIMES.items():
            sketch: Sketch = getattr(one.tally, name)
            if sketch.count:
                cells = (f"{milliseconds(sketch, share):,g}" for share in SHARES)
                rows.append(row((title, *cells, f"{sketch.count:,}"), 1))
    return element("table", join((element("thead", head), element("tbody", join(rows)))))


def _errors(measured: Sequence[Measured]) -> Markup:
    rows = [
        row((one.target.name, code, f"{count:,}"), 2)
        for one in measured
        for code, count in one.tally.errors.most_common()
    ]
    return element("table", element("tbody", join(rows)))


def _notes(measured: Sequence[Measured]) -> Markup:
    notes = [
        "All waiting counts from when a request was due, whether or not a connection was free for it.",
        "Percentiles are within 1 % (DDSketch). Slow readers' times are left out.",
        f"A client that uses over {BUSY_SHARE:.0%} of a core measures itself too.",
        *(f"Exactness of {one.target.name}: {one.proof}." for one in measured),
        *(f"Warning: {warning}." for one in measured for warning in one.warnings),
    ]
    return element("footer", join(element("p", note) for note in notes))
