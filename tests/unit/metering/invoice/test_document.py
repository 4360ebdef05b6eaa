"""The forms of an invoice."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

from metering.invoice.document import Invoice, invoice_number, to_csv, to_json
from metering.invoice.pricing import Line, total_of
from metering.plans.model import Rounding

ROUNDING = Rounding("ROUND_HALF_UP", 2)


def invoice(model: str = "smol", closed_ms: int | None = None) -> Invoice:
    exact = Decimal("0.005000")
    line = Line(
        *("tokens.input", model, "2026", Decimal("62.5"), "tokens"),
        *(Decimal("0.080"), Decimal(1000), exact, Decimal("0.01")),
    )
    return Invoice(
        tenant="acme",
        month="2026-11",
        plan="standard",
        currency="CNY",
        time_zone="Europe/Berlin",
        rounding_mode=ROUNDING.mode,
        digits=2,
        from_ms=1_793_487_600_000,
        until_ms=1_796_079_600_000,
        position=7,
        closed_ms=closed_ms,
        lines=(line, line),
        total=total_of((line, line), ROUNDING),
    )


def test_json_has_decimal_strings() -> None:
    """CASES 91: no number of money or quantity is a JSON number, which readers make floats of."""
    told = json.loads(to_json(invoice(closed_ms=1_796_079_600_001)))
    assert told["state"] == "closed"
    assert told["from"] == "2026-11-01T00:00:00.000+01:00"
    assert told["closed"] == "2026-12-01T00:00:00.001+01:00"
    assert told["rounding"].startswith("each line to 2 digits, half away from zero")
    line = told["lines"][0]
    assert (line["quantity"], line["price"], line["per"]) == ("62.5", "0.08", "1000")
    assert (line["exact"], line["amount"], told["total"]) == ("0.005", "0.01", "0.02")


def test_draft_says_so() -> None:
    """A draft has no moment of closing."""
    told = json.loads(to_json(invoice()))
    assert (told["state"], told["closed"]) == ("draft", None)


def test_csv_adds_up() -> None:
    """The amounts of the rows are the total."""
    rows = list(csv.DictReader(io.StringIO(to_csv(invoice()).decode())))
    assert sum(Decimal(row["amount"]) for row in rows) == Decimal("0.02")
    assert rows[0]["price"] == "0.08"


def test_spreadsheet_runs_nothing() -> None:
    """A model's name that begins like a formula is text."""
    (row, _) = csv.DictReader(io.StringIO(to_csv(invoice('=HYPERLINK("x")')).decode()))
    assert row["description"] == '\'=HYPERLINK("x")'


def test_number_is_the_invoices_own() -> None:
    """Tenant and month make it; the tenant's name is not in it."""
    assert invoice().number == invoice_number("acme", "2026-11") != invoice_number("x", "2026-11")
    assert "acme" not in invoice().number
