"""Whatever the order, the repetition and the lateness of events, the bill is the same money."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from metering.event import ConnectionClosed, Event, RequestMade, UsageEvent, parse_event
from metering.invoice.billing import Billing
from metering.plans.calendar import Month
from metering.store.billing import BillingStore
from metering.store.sql import SqlStore
from tests.support.plans import ALL_MODES, book
from tests.support.usage_events import connection_payload, request_payload, usage_payload

BEGIN_MS, END_MS = 1_790_812_800_000, 1_798_761_600_000  # October to December 2026, UTC
MONTHS = [Month(2026, month) for month in (10, 11, 12)]
LATER_MS = 1_900_000_000_000
PLANS = book(ALL_MODES)

counts = st.integers(0, 10**6)
moments = st.integers(BEGIN_MS, END_MS - 1)


def _stream(name: str, at: int, cached: int, more: int, output: int) -> bytes:
    tokens = {"prompt_tokens": cached + more, "cached_tokens": cached, "completion_tokens": output}
    return usage_payload(name, started_ms=at, **tokens)


def _connection(name: str, at: int, long: int, size: int, rtt: list[int]) -> bytes:
    # It ends within the three months, so that their invoices hold all of it.
    long = min(long, END_MS - 1 - at)
    times = {"opened_ms": at, "established_ms": long}
    return connection_payload(name, bytes_in=size, rtt_us=rtt, **times)


@st.composite
def event_lists(draw: st.DrawFn) -> list[Event]:
    """Distinct events of all kinds, told once or more, in any order."""
    payloads: list[bytes] = []
    for n in range(draw(st.integers(1, 12))):
        kind, at = draw(st.integers(0, 2)), draw(moments)
        if kind == 0:
            payloads.append(_stream(f"u{n}", at, draw(counts), draw(counts), draw(counts)))
        elif kind == 1:
            rtt = draw(st.lists(st.integers(0, 10**6), max_size=10))
            long = draw(st.integers(0, 40 * 86_400_000))
            payloads.append(_connection(f"c{n}", at, long, draw(counts) * 1_000, rtt))
        else:
            payloads.append(request_payload(f"r{n}", at_ms=at))
    told = draw(st.permutations(payloads + draw(st.lists(st.sampled_from(payloads), max_size=6))))
    return [parse_event(payload) for payload in told]


class _Books:
    def __init__(self, folder: str) -> None:
        self.store = SqlStore(f"sqlite:///{folder}/ledger.db")
        self.billing = Billing(BillingStore(self.store.engine))

    def take(self, events: list[Event]) -> None:
        for at in range(0, len(events), 3):
            self.store.write(list({e.id: e for e in events[at : at + 3]}.values()), ())

    def total(self, month: Month) -> Decimal:
        return self.billing.draft(PLANS, "acme", month).total


@settings(max_examples=15, deadline=None)
@given(event_lists(), st.data())
def test_closing_moves_money_and_neither_makes_nor_loses_any(
    events: list[Event], data: st.DataObject
) -> None:
    """Months closed at any moment between events add up to what months closed at the end do."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), min_size=2, max_size=2)))
    with tempfile.TemporaryDirectory() as early, tempfile.TemporaryDirectory() as late:
        one, other = _Books(early), _Books(late)
        begin = 0
        for month, cut in zip(MONTHS, cuts, strict=False):
            one.take(events[begin:cut])
            one.billing.close(PLANS, "acme", month, LATER_MS)
            begin = cut
        one.take(events[begin:])
        other.take(events)
        closed = [one.billing.closed("acme", month) for month in MONTHS[:2]]
        sums = [invoice.total for invoice in closed if invoice] + [one.total(MONTHS[2])]
        assert sum(sums) == sum(other.total(month) for month in MONTHS)
        assert all(one.billing.reproduces("acme", month) for month in MONTHS[:2])
        one.store.close()
        other.store.close()


def _exact(events: list[Event]) -> dict[str, Fraction]:
    """What the additive parts cost, over all months, by arithmetic without a ledger."""
    owed: dict[str, Fraction] = dict.fromkeys(
        ("tokens", "seconds", "requests", "bandwidth"), Fraction(0)
    )
    for event in {e.id: e for e in events}.values():
        match event:
            case UsageEvent():
                fresh = event.prompt_tokens - event.cached_tokens
                milli = 80 * fresh + 20 * event.cached_tokens + 160 * event.completion_tokens
                owed["tokens"] += Fraction(milli, 10**6)
            case ConnectionClosed():
                seconds = Fraction(event.ended_ms - event.opened_ms, 1000)
                owed["seconds"] += seconds * Fraction(12, 10**4)
                rtt_ms = Fraction(sum(event.rtt_us), 1000 * max(1, len(event.rtt_us)))
                size = event.bytes_in + event.bytes_out
                weight = 1 + rtt_ms * Fraction(2, 1000)
                owed["bandwidth"] += seconds / 10**4 + size * weight * Fraction(2, 10**9)
            case RequestMade():
                owed["requests"] += Fraction(1, 1000)
    return owed


@settings(max_examples=15, deadline=None)
@given(event_lists())
def test_ledger_equals_arithmetic(events: list[Event]) -> None:
    """All ways of charging at once: exact products are the oracle's fractions."""
    names = {"tokens": "tokens", "connection_time": "seconds", "requests": "requests"}
    names["time_bandwidth"] = "bandwidth"
    with tempfile.TemporaryDirectory() as folder:
        books = _Books(folder)
        books.take(events)
        owed: dict[str, Any] = dict.fromkeys(names.values(), Fraction(0))
        for month in MONTHS:
            for line in books.billing.draft(PLANS, "acme", month).lines:
                name = names.get(line.part.partition(".")[0])
                if name:
                    owed[name] += Fraction(line.exact)
        books.store.close()
    expected = _exact(events)
    # A weighted round trip is kept to 12 digits after the point: its price errs by far less.
    bandwidth = owed.pop("bandwidth") - expected.pop("bandwidth")
    assert owed == expected
    assert abs(bandwidth) < Fraction(1, 10**20)
