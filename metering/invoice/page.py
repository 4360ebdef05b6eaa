"""An invoice as a page to read and print."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from zoneinfo import ZoneInfo

from metering.invoice.document import Invoice, moment_text
from metering.invoice.pricing import Line, plain
from metering.paper.sheet import Markup, element, facts, join, number_class, row, sheet

__all__ = ["to_html"]

_SECTIONS = {
    "tokens": "Tokens",
    "connection_time": "Connection time",
    "concurrency": "Concurrent connections",
    "requests": "Requests",
    "time_bandwidth": "Time and bandwidth",
    "correction": "Corrections",
    "late": "Earlier months",
}
_HEAD = ("Item", "Quantity", "Price", "Exact", "Amount")


def to_html(invoice: Invoice) -> bytes:
    """One self-contained page."""
    parts = (
        _header(invoice),
        facts(_facts(invoice)),
        _table(invoice),
        element(
            "footer",
            join(
                (
                    element("p", f"Rounding: {invoice.rounding}."),
                    element(
                        "p",
                        "Tokens are those that were put into frames. Connection time runs from "
                        "ESTABLISHED through CLOSE_WAIT; TIME_WAIT is free.",
                    ),
                )
            ),
        ),
    )
    return sheet(f"Invoice {invoice.number}", parts)


def _header(invoice: Invoice) -> Markup:
    draft = invoice.closed_ms is None
    state = element(
        "span", "draft" if draft else "closed", class_="badge draft" if draft else "badge"
    )
    name = join(
        (
            element("p", "Seedance", class_="brand"),
            element("h1", f"Invoice {invoice.month}"),
            element("p", f"No. {invoice.number}", class_="quiet"),
            state,
        )
    )
    total = join(
        (
            element("span", "Total so far" if draft else "Total", class_="quiet"),
            element("strong", f"{_grouped(invoice.total)} {invoice.currency}"),
        )
    )
    return element("header", join((element("div", name), element("div", total, class_="sum"))))


def _facts(invoice: Invoice) -> dict[str, str]:
    zone = ZoneInfo(invoice.time_zone)
    told = {
        "Tenant": invoice.tenant,
        "Plan": invoice.plan,
        "Time zone": invoice.time_zone,
        "From": _moment(invoice.from_ms, zone),
        "Until, not included": _moment(invoice.until_ms, zone),
        "Ledger position": str(invoice.position),
    }
    if invoice.closed_ms is not None:
        told["Closed"] = _moment(invoice.closed_ms, zone)
    return told


def _moment(moment_ms: int, zone: ZoneInfo) -> str:
    day, _, rest = moment_text(moment_ms, zone).partition("T")
    clock = rest[:5] if rest[5:8] == ":00" else rest[:8]
    return f"{day} {clock} UTC{rest[12:]}"


def _table(invoice: Invoice) -> Markup:
    bodies = join(_bodies(invoice))
    cells = (
        element("th", f"Total, {invoice.currency}", colspan="4"),
        element("td", _grouped(invoice.total), class_="n"),
    )
    return element(
        "table",
        join(
            (
                element("thead", row(_HEAD, 1, tag="th")),
                bodies,
                element("tfoot", element("tr", join(cells))),
            )
        ),
        class_="bill",
    )


def _bodies(invoice: Invoice) -> Iterator[Markup]:
    several = len({line.version for line in invoice.lines if line.version}) > 1
    for part, name in _SECTIONS.items():
        lines = [line for line in invoice.lines if line.part.partition(".")[0] == part]
        if lines:
            head = element("tr", element("th", name, colspan="5"))
            yield element("tbody", join((head, *(_row(line, several) for line in lines))))
    if not invoice.lines:
        nothing = element("td", "Nothing was used.", colspan="5")
        yield element("tbody", element("tr", nothing, class_="none"))


def _row(line: Line, several: bool) -> Markup:
    named = several and line.version
    item = f"{line.description} (prices {line.version})" if named else line.description
    dull = "" if line.amount or line.quantity else "none"
    if not line.unit:
        money = (
            element("td", text, class_=number_class(text))
            for text in (_exact(line), _grouped(line.amount))
        )
        return element("tr", join((element("td", item, colspan="3"), *money)), class_=dull)
    quantity = f"{_grouped(line.quantity)} {line.unit}"
    cells = (item, quantity, _price(line), _exact(line), _grouped(line.amount))
    return row(cells, 1, class_=dull)


def _exact(line: Line) -> str:
    return _grouped(Decimal(plain(line.exact)))


def _price(line: Line) -> str:
    price = plain(line.price)
    return price if line.per == 1 else f"{price} / {_grouped(line.per)}"


def _grouped(number: Decimal) -> str:
    # Trailing zeros of an amount are its digits; a quantity has none.
    return f"{number:,f}"
