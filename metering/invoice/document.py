"""An invoice as a value, and its JSON and CSV. The same invoice is the same bytes, always."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from metering.invoice.pricing import Line, plain

__all__ = [
    "Invoice",
    "InvoiceHead",
    "head_of",
    "invoice_number",
    "moment_text",
    "stored_head",
    "to_csv",
    "to_json",
]

ROUNDING_WORDS = {
    "ROUND_HALF_UP": "half away from zero",
    "ROUND_HALF_EVEN": "half to the even digit",
    "ROUND_DOWN": "toward zero",
}
_CSV_HEAD = (
    *("invoice", "tenant", "month", "part", "description", "version", "quantity", "unit"),
    *("price", "per", "exact", "amount", "currency"),
)


@dataclass(frozen=True, slots=True)
class Invoice:
    """A month of one tenant. `closed_ms` is None for a draft, which the next event may change."""

    tenant: str
    month: str
    plan: str
    currency: str
    time_zone: str
    rounding_mode: str
    digits: int
    from_ms: int
    until_ms: int
    position: int
    closed_ms: int | None
    lines: tuple[Line, ...]
    total: Decimal

    @property
    def number(self) -> str:
        """Its number: the same whenever it is made."""
        return invoice_number(self.tenant, self.month)

    @property
    def rounding(self) -> str:
        """How its money was rounded, in words."""
        words = ROUNDING_WORDS[self.rounding_mode]
        return f"each line to {self.digits} digits, {words}; the total is the sum of the lines"


@dataclass(frozen=True, slots=True)
class InvoiceHead:
    """An invoice without its lines."""

    number: str
    month: str
    closed: bool
    total: str
    currency: str


def head_of(invoice: Invoice) -> InvoiceHead:
    """An invoice's head."""
    closed = invoice.closed_ms is not None
    total = f"{invoice.total:f}"
    return InvoiceHead(invoice.number, invoice.month, closed, total, invoice.currency)


def stored_head(document: bytes) -> InvoiceHead:
    """The head of a closed invoice, from its JSON."""
    told = json.loads(document)
    return InvoiceHead(
        told["number"], told["month"], told["state"] == "closed", told["total"], told["currency"]
    )


def invoice_number(tenant: str, month: str) -> str:
    """A number that names tenant and month, and shows only the month."""
    return f"{month}-{hashlib.sha256(tenant.encode()).hexdigest()[:8]}"


def moment_text(moment_ms: int, zone: ZoneInfo | None = None) -> str:
    """A moment in ISO 8601 with its offset, to the millisecond."""
    moment = datetime.fromtimestamp(moment_ms // 1000, zone or UTC)
    return moment.replace(microsecond=moment_ms % 1000 * 1000).isoformat(timespec="milliseconds")


def to_json(invoice: Invoice) -> bytes:
    """The document: money and quantities are decimal strings."""
    zone = ZoneInfo(invoice.time_zone)
    closed = invoice.closed_ms
    told: dict[str, Any] = {
        "object": "invoice",
        "number": invoice.number,
        "state": "draft" if closed is None else "closed",
        "tenant": invoice.tenant,
        "month": invoice.month,
        "time_zone": invoice.time_zone,
        "from": moment_text(invoice.from_ms, zone),
        "until": moment_text(invoice.until_ms, zone),
        "plan": invoice.plan,
        "currency": invoice.currency,
        "rounding": invoice.rounding,
        "ledger_position": invoice.position,
        "closed": None if closed is None else moment_text(closed, zone),
        "lines": [_line(line) for line in invoice.lines],
        "total": f"{invoice.total:f}",
    }
    return (json.dumps(told, ensure_ascii=False, indent=2) + "\n").encode()


def to_csv(invoice: Invoice) -> bytes:
    """One row per line, for a spreadsheet; the rows' amounts add up to the total."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(_CSV_HEAD)
    for line in invoice.lines:
        told = _line(line)
        names = [_inert(x) for x in (invoice.number, invoice.tenant, invoice.month)]
        columns = [_inert(str(told[n])) for n in ("part", "description", "version")]
        numbers = [told[n] for n in ("quantity", "unit", "price", "per", "exact", "amount")]
        rows.writerow([*names, *columns, *numbers, invoice.currency])
    return text.getvalue().encode()


def _inert(cell: str) -> str:
    # A spreadsheet runs a cell that begins like a formula; tenants and models choose their names.
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _line(line: Line) -> dict[str, str]:
    return {
        "part": line.part,
        "description": line.description,
        "version": line.version,
        "quantity": plain(line.quantity),
        "unit": line.unit,
        "price": plain(line.price),
        "per": plain(line.per),
        "exact": plain(line.exact),
        "amount": f"{line.amount:f}",
    }
