"""Invoices: drafts, closing once, late events, and the same bytes again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from metering.event import parse_event
from metering.invoice.billing import Billing, CannotCloseError
from metering.invoice.document import Invoice, to_json
from metering.invoice.pricing import UnpricedError
from metering.plans.calendar import Month
from metering.plans.model import PlanBook
from metering.store.billing import BillingStore, Correction
from metering.store.sql import SqlStore
from tests.support.plans import ALL_MODES, book
from tests.support.usage_events import connection_payload, request_payload, usage_payload

OCTOBER, NOVEMBER, DECEMBER = (Month(2026, month) for month in (10, 11, 12))
OCTOBER_MS, NOVEMBER_MS, DECEMBER_MS = 1_790_812_800_000, 1_793_491_200_000, 1_796_083_200_000
LATER_MS = 1_900_000_000_000


class Books:
    """A ledger with billing on it."""

    def __init__(self, folder: Path) -> None:
        self.store = SqlStore(f"sqlite:///{folder}/ledger.db")
        self.billing_store = BillingStore(self.store.engine)
        self.billing = Billing(self.billing_store)
        self.plans: PlanBook = book()

    def take(self, *payloads: bytes) -> None:
        self.store.write([parse_event(payload) for payload in payloads], ())

    def draft(self, month: Month = NOVEMBER) -> Invoice:
        return self.billing.draft(self.plans, "acme", month)

    def close(self, month: Month = NOVEMBER) -> dict[str, object]:
        document = self.billing.close(self.plans, "acme", month, LATER_MS)
        assert self.billing.reproduces("acme", month)
        told: dict[str, object] = json.loads(document)
        return told


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(tmp_path)
    yield made
    made.store.close()


def output(event_id: str, at_ms: int, tokens: int = 1_000, **more: object) -> bytes:
    """A generation of output only: 0.16 for every 1,000 tokens."""
    counts = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": tokens}
    return usage_payload(event_id, started_ms=at_ms, **(counts | more))


def parts(invoice: Invoice) -> dict[str, str]:
    return {line.part: str(line.amount) for line in invoice.lines if line.amount}


def test_month_edges(books: Books) -> None:
    """A month holds its first millisecond and not the next month's."""
    for moment in (NOVEMBER_MS - 1, NOVEMBER_MS, DECEMBER_MS - 1, DECEMBER_MS):
        books.take(output(str(moment), moment))
    totals = [str(books.draft(month).total) for month in (OCTOBER, NOVEMBER, DECEMBER)]
    assert totals == ["0.16", "0.32", "0.16"]


def test_month_is_the_plans(books: Books) -> None:
    """In Shanghai November begins eight hours before it does in London."""
    books.take(output("1", NOVEMBER_MS - 8 * 3_600_000), output("2", DECEMBER_MS - 8 * 3_600_000))
    books.plans = book(time_zone="Asia/Shanghai")
    assert str(books.draft().total) == "0.16"
    assert json.loads(to_json(books.draft()))["from"] == "2026-11-01T00:00:00.000+08:00"


def test_every_mode_at_once(books: Books) -> None:
    """One month, each part by hand (CASES 102: refused, retried; CLOSE_WAIT; TIME_WAIT)."""
    books.plans = book(ALL_MODES)
    at = NOVEMBER_MS + 1
    books.take(
        usage_payload(
            started_ms=at, prompt_tokens=20_000, cached_tokens=5_000, completion_tokens=0
        ),
        request_payload("401", at_ms=at, outcome="unauthorized"),
        *(request_payload(str(n), at_ms=at, idempotency_id="again") for n in range(4)),
        *(request_payload(f"unnamed-{n}", at_ms=at) for n in range(4)),
        connection_payload(
            opened_ms=at,
            established_ms=1_000_000,
            close_wait_ms=5_000,
            time_wait_ms=60_000,
            bytes_in=10**9,
            bytes_out=10**9,
            rtt_us=[40_000, 60_000],
        ),
    )
    invoice = books.draft()
    assert parts(invoice) == {
        "connection_time": "1.21",  # 1,005 s x 0.0012 = 1.206
        "tokens.input": "1.20",  # 15,000
        "tokens.cached": "0.10",  # 5,000
        "concurrency": "299.00",
        "requests": "0.01",  # 1 + 1 + 4 at 0.001 = 0.006
        "time_bandwidth.time": "0.10",  # 1,005 s x 0.0001 = 0.1005
        "time_bandwidth.bytes": "4.00",
        "time_bandwidth.round_trip": "0.40",  # 50 ms: 10 % of the bytes' price
    }
    assert str(invoice.total) == "306.02"
    quantity = {line.part: str(line.quantity) for line in invoice.lines}
    assert quantity["requests"] == "6"


def test_connection_over_a_month_edge(books: Books) -> None:
    """Each month has the time that the connection was open in it."""
    books.plans = book('\n          connection_time: {per_second: "1"}')
    books.take(connection_payload(opened_ms=NOVEMBER_MS - 1_500, established_ms=4_000))
    totals = [str(books.draft(month).total) for month in (OCTOBER, NOVEMBER, DECEMBER)]
    assert totals == ["1.50", "2.50", "0.00"]


def test_price_that_changes_within_the_month(books: Books) -> None:
    """Each half has its own price, and a line says which version it is by."""
    second = """
      - version: "dearer"
        since: 2026-11-16
        prices:
          tokens: [{models: ["*"], input_per_1000: 0, cached_per_1000: 0, output_per_1000: 1}]
"""
    books.plans = book(more=second)
    change_ms = NOVEMBER_MS + 15 * 86_400_000
    books.take(output("1", change_ms - 1), output("2", change_ms))
    charged = [(line.version, str(line.amount)) for line in books.draft().lines if line.amount]
    assert charged == [("2000", "0.16"), ("dearer", "1.00")]


def test_attempts_are_priced_where_they_ran(books: Books) -> None:
    """CASES 86: 10 tokens of a model that died and 40 of another are 50, each at its own price."""
    rule = "{{models: [{}], input_per_1000: 100, cached_per_1000: 0, output_per_1000: {}}}"
    rules = "".join(f"\n            - {rule.format(*r)}" for r in (("a", 1_000), ("b", 2_000)))
    books.plans = book(f"\n          tokens:{rules}")
    attempts = [
        {"model": "a", "instance": "i-0", "completion_tokens": 10},
        {"model": "b", "instance": "i-1", "completion_tokens": 40},
    ]
    books.take(
        output("1", NOVEMBER_MS, 50, model="b", prompt_tokens=100, attempts=attempts),
    )
    charged = {line.description: str(line.amount) for line in books.draft().lines if line.amount}
    assert charged == {"Output, a": "10.00", "Input, b": "10.00", "Output, b": "80.00"}


def test_streamed_or_not_costs_the_same(books: Books) -> None:
    """CASES 85: the price is of tokens; how they were carried is not in it."""
    ways = ("acme", "session-of-a-socket"), ("globex", "http-of-one-answer")
    for tenant, session in ways:
        books.take(usage_payload(session, started_ms=NOVEMBER_MS, tenant=tenant, session=session))
    one, other = (books.billing.draft(books.plans, tenant, NOVEMBER) for tenant, _ in ways)
    assert one.lines == other.lines
    assert [str(x.exact) for x in one.lines] == ["0.0004", "0.00004", "0.0008"]


def test_closing_twice_gives_one(books: Books) -> None:
    """The second closing is the first one's bytes, whatever has come in between."""
    books.take(output("1", NOVEMBER_MS))
    first = books.billing.close(books.plans, "acme", NOVEMBER, LATER_MS)
    books.take(output("2", NOVEMBER_MS))
    books.plans = book(ALL_MODES)
    assert books.billing.close(books.plans, "acme", NOVEMBER, LATER_MS + 1) == first
    assert books.billing.reproduces("acme", NOVEMBER)
    assert len(books.billing_store.invoices("acme")) == 1


def test_late_usage_is_billed_next_month_once(books: Books) -> None:
    """What came after closing is on the next invoice, by the closed month's plan, and never again."""
    books.take(output("1", OCTOBER_MS))
    assert books.close(OCTOBER)["total"] == "0.16"
    books.plans = book(ALL_MODES)
    books.take(output("late", OCTOBER_MS), output("2", NOVEMBER_MS))
    books.take(connection_payload(opened_ms=OCTOBER_MS))  # that plan has no price for it
    november = books.draft()
    late = {line.description: str(line.amount) for line in november.lines if line.part == "late"}
    assert late == {"Usage of 2026-10, reported after it was closed": "0.16"}
    books.close(NOVEMBER)
    assert "late" not in parts(books.draft(DECEMBER))
    books.take(output("later", OCTOBER_MS), output("3", NOVEMBER_MS))
    december = [str(x.amount) for x in books.draft(DECEMBER).lines if x.part == "late"]
    assert december == ["0.16", "0.16"]
    books.close(DECEMBER)
    assert all(books.billing.reproduces("acme", m) for m in (OCTOBER, NOVEMBER, DECEMBER))


def test_usage_before_the_first_invoice_is_not_lost(books: Books) -> None:
    """Months older than the first that was closed are late usage when they come."""
    books.close(NOVEMBER)
    books.take(output("old", OCTOBER_MS))
    assert parts(books.draft(DECEMBER)) == {"late": "0.16"}
    assert parts(books.draft(Month(2027, 1))) == {}


def test_months_are_closed_in_order(books: Books) -> None:
    """Neither an unfinished month, nor one with an open month before it."""
    books.take(output("1", OCTOBER_MS))
    close = books.billing.close
    with pytest.raises(CannotCloseError, match="not over yet"):
        close(books.plans, "acme", OCTOBER, NOVEMBER_MS - 1)
    with pytest.raises(CannotCloseError, match="usage in 2026-10"):
        books.close(NOVEMBER)
    close(books.plans, "acme", OCTOBER, NOVEMBER_MS)
    with pytest.raises(CannotCloseError, match="2026-11 comes first"):
        books.close(DECEMBER)
    with pytest.raises(CannotCloseError, match="closing began with 2026-10"):
        books.close(Month(2026, 9))
    assert books.close(NOVEMBER)["total"] == "0.00"


def test_balance_is_the_sum_of_its_entries(books: Books) -> None:
    """CASES 93: 100 given, 14.28444999 taken back: 14.28 and 85.72, once however often told."""
    given = Correction("credit", "acme", NOVEMBER_MS, Decimal(-100), "credit")
    void = Correction("void", "acme", NOVEMBER_MS + 1, Decimal("14.28444999"), "void")
    for _ in range(2):
        books.billing.correct(books.plans, given)
        assert str(books.billing.correct(books.plans, void)) == "14.28"
    invoice = books.draft()
    assert [str(line.amount) for line in invoice.lines] == ["-100.00", "14.28"]
    assert str(invoice.total) == "-85.72"
    books.close()


def test_what_has_no_price_stops_the_bill(books: Books) -> None:
    """Usage before the plan begins is said, not given away."""
    books.take(output("1", 0))
    with pytest.raises(UnpricedError, match="no version"):
        books.draft(Month(1970, 1))


def test_tenants_are_apart(books: Books) -> None:
    """An invoice has its tenant's usage only."""
    books.take(output("1", NOVEMBER_MS), output("2", NOVEMBER_MS, tenant="globex"))
    assert str(books.draft().total) == "0.16"
    assert books.billing_store.tenants() == ["acme", "globex"]
