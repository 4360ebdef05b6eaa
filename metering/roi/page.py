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
_WIDTH, _HEIGHT, _COLUMNS_MAX = 760, 150, 380


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page. `bursts` at several thresholds, of which `threshold` was asked for.

    `bad_lines` of the log were left out, the first at `first_bad`.
    """

    traffic: Traffic
    options: Sequence[Option]
    bursts: Sequence[Bursts]
    threshold: Fraction
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
        _costs(report),
        element("h2", "Requests a minute"),
        *_area(report),
        element("h2", "If bursts were scaled out for"),
        *_bursts(report),
        element("h2", "The decision"),
        _matrix(report),
        _notes(report),
    )
    return sheet("Which way of charging is cheapest", parts)


def _header(report: Report) -> Markup:
    best = report.options[0]
    title = (
        f"Take: {NAMES[best.mode]}"
        if best.month_cost is not None
        else "No way of charging can be priced"
    )
    left = join(
        (
            element("p", "Seedance", class_="brand"),
            element("h1", title),
            element(
                "p", f"Plan {report.plan}, by {report.traffic.requests:,} requests", class_="quiet"
            ),
        )
    )
    parts = [element("div", left)]
    if best.month_cost is not None:
        cost = element("strong", _money(best.month_cost, report))
        parts.append(
            element("div", join((element("span", "a month", class_="quiet"), cost)), class_="sum")
        )
    return element("header", join(parts))


def _facts(report: Report) -> dict[str, str]:
    traffic = report.traffic
    per_s = Fraction(traffic.requests * 1000, traffic.span_ms)
    return {
        "From": _minute(traffic.from_ms),
        "Until": _minute(traffic.until_ms),
        "Throughput": f"{float(per_s):.3g} requests/s",
        "Half are done within": _milliseconds(traffic.p50_ms),
        "99 % are done within": _milliseconds(traffic.p99_ms),
        "Errors": f"{traffic.errors:,} ({traffic.errors / traffic.requests:.2%})",
        "Burst factor": f"{float(traffic.burst_factor):.1f}",
        "Peak at one moment": f"{traffic.quantities.connections.peak:,}",
    }


def _minute(moment_ms: int) -> str:
    return moment_text(moment_ms)[:16].replace("T", " ") + " UTC"


def _milliseconds(value: int | None) -> str:
    return "the log does not say" if value is None else f"{value:,} ms"


def _money(amount: Decimal, report: Report) -> str:
    return f"{amount.quantize(Decimal('0.01'), ROUND_HALF_UP):,f} {report.currency}"


def _costs(report: Report) -> Markup:
    known = [o.month_cost for o in report.options if o.month_cost is not None]
    largest = max(known, default=Decimal(0)) or Decimal(1)
    rows = []
    for option in report.options:
        name: str = NAMES[option.mode]
        cost = option.missing
        if option.month_cost is not None:
            cost = _money(option.month_cost, report)
            width = f"width: max(3px, {100 * option.month_cost / largest:.1f}%)"
            name = join((element("span", name), element("div", class_="bar", style=width)))
        worth = "–" if option.month_cost is None else f"{option.worth:.2f}"
        cells = (name, cost, f"{option.merit:.2f}", worth)
        rows.append(row(cells, 1, class_="best" if _taken(option, report) else ""))
    head = row(("Way of charging", "A month", "Merit", "Worth"), 1, tag="th")
    return _table(head, rows)


def _taken(option: Option, report: Report) -> bool:
    return option is report.options[0] and option.month_cost is not None


def _table(head: Markup, rows: Sequence[Markup]) -> Markup:
    table = element("table", join((element("thead", head), element("tbody", join(rows)))))
    return element("div", table, class_="wide")


def _area(report: Report) -> Sequence[Markup]:
    """Requests a minute; of a long log each column is its busiest minute."""
    traffic = report.traffic
    counts = traffic.per_minute
    step = -(-len(counts) // _COLUMNS_MAX)
    columns = [max(counts[at : at + step]) for at in range(0, len(counts), step)]
    highest = max(columns)
    tops = [_HEIGHT - count * _HEIGHT / highest for count in columns]
    wide = _WIDTH / len(columns)
    steps = enumerate([*tops[1:], _HEIGHT])
    outline = " ".join(f"H{(at + 1) * wide:.1f}V{y:.1f}" for at, y in steps)
    limit = _HEIGHT - float(traffic.mean_per_minute * report.threshold) * _HEIGHT / highest
    parts = [element("path", d=f"M0 {_HEIGHT}V{tops[0]:.1f}{outline}Z", class_="area")]
    if limit > 0:
        y = f"{limit:.1f}"
        parts.append(element("line", class_="limit", x1="0", x2=str(_WIDTH), y1=y, y2=y))
    chart = element(
        "svg",
        join(parts),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label="Requests a minute",
    )
    said = f"Busiest minute {highest:,}, average {float(traffic.mean_per_minute):.3g}"
    dashed = f"dashed: {float(report.threshold):g} times the average" if limit > 0 else ""
    ends = (_minute(traffic.from_ms), _minute(traffic.until_ms))
    return (
        element("p", "; ".join(filter(None, (said, dashed))), class_="quiet"),
        chart,
        element("p", join(element("span", text) for text in ends), class_="ends quiet"),
    )


def _bursts(report: Report) -> Sequence[Markup]:
    about = (
        "More instances from the first minute over the threshold until the cool-down after the last: "
        "1.5 times the longest burst, so that a burst which pauses is not paid for twice in starts."
    )
    head = ("Over", "Bursts", "Longest", "Cool-down", "Scale-outs", "Minutes with more")
    rows = [
        row(
            (
                f"{float(bursts.threshold):g} × average",
                f"{bursts.bursts:,}",
                f"{bursts.longest_min:,} min",
                f"{bursts.cool_down_min:,} min",
                f"{bursts.starts:,}",
                f"{bursts.extra_min:,} ({bursts.extra_min / len(report.traffic.per_minute):.1%})",
            ),
            1,
            class_="best" if bursts.threshold == report.threshold else "",
        )
        for bursts in report.bursts
    ]
    return element("p", about), _table(row(head, 1, tag="th"), rows)


def _matrix(report: Report) -> Markup:
    head = (f"Of {SCORE_MAX} points", *(name.capitalize() for name in CRITERIA), "Merit")
    weights = ("Weight", *(f"{report.weights[name]}" for name in CRITERIA), "")
    rows = [
        row(
            (NAMES[option.mode], *map(str, SCORES[option.mode]), f"{option.merit:.2f}"),
            1,
            class_="best" if _taken(option, report) else "",
        )
        for option in report.options
    ]
    return _table(row(head, 1, tag="th"), [row(weights, 1, class_="none"), *rows])


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
            f"Lines that were not understood and left out: {report.bad_lines:,}, the first at "
            f"{report.first_bad}."
        )
    return element("footer", join(element("p", note) for note in notes))
