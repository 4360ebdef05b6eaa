"""An invoice's page shows what the document says, and runs nothing."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser

from metering.invoice.document import Invoice
from metering.invoice.page import to_html
from metering.invoice.pricing import Line

LINE = Line(
    *("tokens.input", "Input, smol", "2026", Decimal(1_234_567), "tokens"),
    *(Decimal("0.08"), Decimal(1000), Decimal("98.76536"), Decimal("98.77")),
)
INVOICE = Invoice(
    tenant="acme",
    month="2026-11",
    plan="standard",
    currency="CNY",
    time_zone="Asia/Shanghai",
    rounding_mode="ROUND_HALF_UP",
    digits=2,
    from_ms=1_793_462_400_000,
    until_ms=1_796_054_400_000,
    position=7,
    closed_ms=1_796_054_400_001,
    lines=(LINE,),
    total=Decimal("98.77"),
)


class _Texts(HTMLParser):
    """The page's texts, without those of its style."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["style"] and data.strip():
            self.texts.append(data.strip())


def test_page_shows_every_number() -> None:
    """Quantity, price, exact product, amount, total, and where the month begins."""
    texts = _Texts(to_html(INVOICE)).texts
    row = ["Input, smol", "1,234,567 tokens", "0.08 / 1,000", "98.76536", "98.77"]
    at = texts.index(row[0])
    assert texts[at : at + 5] == row
    assert "98.77 CNY" in texts
    assert "2026-11-01 00:00 UTC+08:00" in texts
    assert "closed" in texts


def test_names_are_text() -> None:
    """A tenant or a model that is called like markup stays text."""
    evil = "<script>alert(1)</script>"
    line = replace(LINE, description=evil)
    seen = _Texts(to_html(replace(INVOICE, tenant=evil, lines=(line,))))
    assert "script" not in seen.tags
    assert seen.texts.count(evil) == 2


def test_empty_draft() -> None:
    """A month without anything is a page too."""
    empty = replace(INVOICE, lines=(), total=Decimal("0.00"), closed_ms=None)
    texts = _Texts(to_html(empty)).texts
    assert {"Nothing was used.", "Total so far", "draft"} <= set(texts)
