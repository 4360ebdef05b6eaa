"""The report of a log as a page: what to take, what it costs, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

from metering.invoice.document import moment_text
from metering.paper.sheet import Markup, element, facts, join, row, sheet
from metering.roi.decision import CRITERIA, SCORE_MAX, SCORES, Option
from metering.roi.measure import Bursts, Traffic

__all__ = ["Report", "to_html"]

NAMES = {
    "connection_time": "Connection time",
    "tokens": "Tokens",
    "concurrency": "Concurrent connections",
    "requests": "Requests",
    "time_bandwidth": "Time and bandwidth",
}
_WIDTH, _BAR_LEFT, _BAR_WIDTH, _BAR_STEP = 760, 180, 430, 34
_CHART_HEIGHT, _COLUMNS_MAX = 150, 380


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page. `bad_lines` of the log were left out, the first at `first_bad`."""

    traffic: Traffic
    options: Sequence[Option]
    bursts: Bursts
    weights: Mapping[str, Decimal]
    currency: str
    plan: str
    bad_lines: int = 0
    first_bad: str = ""


def to_html(report: Report) -> bytes:
    """One self-contained page."""
    parts = (
        _header(report),
        facts(_facts(report)),
        element("h2", "What a month would cost"),
        _bars(report),
        _costs(report),
        element("h2", "Requests a minute"),
        _area(report.traffic),
        *_bursts(report.bursts),
        element("h2", "The decision"),
        _matrix(report),
        _notes(report),
    )
    return sheet("Which way of charging is cheapest", parts)


def _header(report: Report) -> Markup:
    best = report.options[0]
    known = best.month_cost is not None
    name = NAMES[best.mode] if known else "None: neither plan nor log says enough"
    left = join(
        (
            element("p", "Seedance", class_="brand"),
            element("h1", f"Take: {name}"),
            element(
                "p", f"Plan {report.plan}, by {report.traffic.requests:,} requests", class_="quiet"
            ),
        )
    )
    cost = _money(best.month_cost, report) if best.month_cost is not None else "—"
    right = join((element("span", "a month", class_="quiet"), element("strong", cost)))
    return element("header", join((element("div", left), element("div", right, class_="sum"))))


def _facts(report: Report) -> dict[str, str]:
    traffic = report.traffic
    per_s = Fraction(traffic.requests * 1000, traffic.span_ms)
    return {
        "From": moment_text(traffic.from_ms)[:16].replace("T", " ") + " UTC",
        "Until": moment_text(traffic.until_ms)[:16].replace("T", " ") + " UTC",
        "Throughput": f"{float(per_s):.3g} requests/s",
        "Half are done within": _milliseconds(traffic.p50_ms),
        "99 % are done within": _milliseconds(traffic.p99_ms),
        "Errors": f"{traffic.errors:,} ({traffic.errors / traffic.requests:.2%})",
        "Burst factor": f"{float(traffic.burst_factor):.1f}",
        "Peak at one moment": f"{traffic.quantities.connections.peak:,}",
    }


def _milliseconds(value: int | None) -> str:
    return "the log does not say" if value is None else f"{value:,} ms"


def _money(amount: Decimal, report: Report) -> str:
    return f"{amount.quantize(Decimal('0.01'), ROUND_HALF_UP):,f} {report.currency}"


def _bars(report: Report) -> Markup:
    known = [(o, o.month_cost) for o in report.options if o.month_cost is not None]
    largest = max((cost for _, cost in known), default=Decimal(0)) or Decimal(1)
    parts: list[Markup] = []
    for at, (option, cost) in enumerate(known):
        y = at * _BAR_STEP
        width = max(2, int(_BAR_WIDTH * cost / largest))
        best = option is report.options[0]
        parts += [
            element("text", NAMES[option.mode], x="0", y=str(y + 19), class_="name"),
            element(
                "rect",
                class_="bar best" if best else "bar",
                x=str(_BAR_LEFT),
                y=str(y + 4),
                rx="4",
                width=str(width),
                height=str(_BAR_STEP - 12),
            ),
            element("text", _money(cost, report), x=str(_BAR_LEFT + width + 8), y=str(y + 19)),
        ]
    return _svg(parts, max(1, len(known)) * _BAR_STEP, "Cost of a month by way of charging")


def _area(traffic: Traffic) -> Markup:
    """Requests a minute; of a long log each column is its busiest minute."""
    counts = traffic.per_minute
    step = -(-len(counts) // _COLUMNS_MAX)
    columns = [max(counts[at : at + step]) for at in range(0, len(counts), step)]
    highest, floor = max(columns), _CHART_HEIGHT + 20
    tops = [floor - count * _CHART_HEIGHT / highest for count in columns]
    wide = _WIDTH / len(columns)
    outline = " ".join(f"H{(at + 1) * wide:.1f}V{y:.1f}" for at, y in enumerate([*tops[1:], floor]))
    path = f"M0 {floor}V{tops[0]:.1f}{outline}Z"
    parts = [
        element("path", d=path, class_="area"),
        element("line", class_="axis", x1="0", x2=str(_WIDTH), y1=str(floor), y2=str(floor)),
        element("text", f"busiest minute: {highest:,}", x="0", y="12"),
    ]
    return _svg(parts, floor + 4, "Requests a minute")


def _svg(parts: Sequence[Markup], height: int, label: str) -> Markup:
    return element(
        "svg", join(parts), viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=label
    )


def _costs(report: Report) -> Markup:
    rows = []
    for option in report.options:
        cost = option.missing if option.month_cost is None else _money(option.month_cost, report)
        cells = (NAMES[option.mode], cost, f"{option.merit:.2f}", f"{option.worth:.2f}")
        best = option is report.options[0] and option.month_cost is not None
        rows.append(row(cells, 1, class_="best" if best else ""))
    head = row(("Way of charging", "A month", "Merit", "Worth"), 1, tag="th")
    return element("table", join((element("thead", head), element("tbody", join(rows)))))


def _bursts(bursts: Bursts) -> Sequence[Markup]:
    text = (
        f"{bursts.bursts:,} bursts went over {float(bursts.threshold):g} times the average; the "
        f"longest took {bursts.longest_min:,} min. Scaling out at that threshold with a cool-down "
        f"of {bursts.cool_down_min:,} min (1.5 times the longest burst) would have meant "
        f"{bursts.starts:,} scale-outs and {bursts.extra_min:,} minutes with more instances."
    )
    if not bursts.bursts:
        text = f"No minute went over {float(bursts.threshold):g} times the average: nothing to scale out for."
    return element("h2", "If bursts were scaled out for"), element("p", text)


def _matrix(report: Report) -> Markup:
    head = ["Of 5 points", *(f"{n} × {report.weights[n]}" for n in CRITERIA)]
    rows = [row((NAMES[mode], *map(str, scores)), 1) for mode, scores in SCORES.items()]
    table = join((element("thead", row(head, 1, tag="th")), element("tbody", join(rows))))
    return element("table", table)


def _notes(report: Report) -> Markup:
    merit = (
        f"Merit: weighted points over {SCORE_MAX}. Worth: merit × the cheapest cost over this one's. "
        "The points are judgements of the ways of charging and the same for every log; "
        "the costs are this log's, for 30 days at its rate."
    )
    taken = (
        "A request is taken for a connection of its own, since a log knows no more. An error is a "
        "status of 400 or above."
    )
    notes = [merit, taken]
    if report.bad_lines:
        notes.append(
            f"{report.bad_lines:,} lines were not understood and left out, the first at "
            f"{report.first_bad}."
        )
    return element("footer", join(element("p", note) for note in notes))
