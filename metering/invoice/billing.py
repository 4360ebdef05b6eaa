"""Drafts, closed invoices, and making a closed one again; synchronous, in the ledger's thread.

A closed invoice never changes. What is reported for its month afterwards is billed on the next
month's, in a line of its own: the month's price with it, less the month's price without it, by the
plan that the month was closed with. Hence months are closed one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from metering.invoice.document import Invoice, InvoiceHead, stored_head, to_json
from metering.invoice.pricing import (
    Line,
    money,
    price_segment,
    round_money,
    segments,
    total_of,
)
from metering.plans.calendar import Month, midnight_ms, month_at
from metering.plans.model import PlanBook
from metering.plans.reader import read_plans
from metering.store.billing import BillingStore, ClosedInvoice, Correction, Window

__all__ = ["Billing", "CannotCloseError"]

_ONE = Decimal(1)


class CannotCloseError(Exception):
    """The month cannot be closed yet; the message says what comes first."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """What an invoice is made of: the whole of it, for bit-for-bit repetition."""

    book: PlanBook
    tenant: str
    month: Month
    position: int
    closed_ms: int | None = None


class Billing:
    """Invoices out of a ledger.

    Methods raise `UnpricedError` when the plan has no price for something that was used.
    """

    def __init__(self, store: BillingStore) -> None:
        self._store = store

    def draft(self, book: PlanBook, tenant: str, month: Month) -> Invoice:
        """The month as the ledger has it now."""
        return self._make(_Ask(book, tenant, month, self._store.newest_position()))

    def close(self, book: PlanBook, tenant: str, month: Month, now_ms: int) -> bytes:
        """Close the month for good; again: the same document. Raises `CannotCloseError`."""
        found = self._store.invoice(tenant, str(month))
        if found:
            return found.document
        self._check_closable(book, tenant, month, now_ms)
        ask = _Ask(book, tenant, month, self._store.position(), now_ms)
        invoice = ClosedInvoice(
            tenant, str(month), ask.position, book.digest, now_ms, to_json(self._make(ask))
        )
        return self._store.add_invoice(invoice, book.text).document

    def closed(self, tenant: str, month: Month) -> Invoice | None:
        """A closed invoice, made again from the ledger as it was and the plan as it was."""
        found = self._store.invoice(tenant, str(month))
        if found is None:
            return None
        book = self._book_of(found)
        return self._make(_Ask(book, tenant, month, found.position, found.closed_ms))

    def heads(self, tenant: str) -> list[InvoiceHead]:
        """The tenant's closed invoices, by month, as they were sent."""
        return [stored_head(found.document) for found in self._store.invoices(tenant)]

    def reproduces(self, tenant: str, month: Month) -> bool:
        """Whether a closed invoice, made again, is the very document that was sent."""
        found, again = self._store.invoice(tenant, str(month)), self.closed(tenant, month)
        return found is not None and again is not None and found.document == to_json(again)

    def correct(self, book: PlanBook, correction: Correction) -> Decimal:
        """Record money by hand, rounded once and here; returns the amount that counts.

        Balances are sums of such entries, so that they never differ from them (CASES 93).
        """
        amount = round_money(correction.amount, book.rounding)
        rounded = Correction(
            correction.id, correction.tenant, correction.at_ms, amount, correction.reason
        )
        self._store.add_correction(rounded)
        return amount

    def _check_closable(self, book: PlanBook, tenant: str, month: Month, now_ms: int) -> None:
        from_ms, until_ms = month.bounds_ms(book.zone)
        if now_ms < until_ms:
            raise CannotCloseError(f"{month} is not over yet")
        invoices = self._store.invoices(tenant)
        if invoices:
            due = Month.parse(invoices[-1].month).next()
            if month > due:
                raise CannotCloseError(f"{due} comes first: months are closed in order")
            if month < due:
                first = invoices[0].month
                raise CannotCloseError(f"closing began with {first}: earlier usage is on the next")
            return
        earliest = self._store.first_moment(tenant, from_ms, -1, self._store.newest_position())
        if earliest is not None:
            due = month_at(earliest, book.zone)
            raise CannotCloseError(f"there is usage in {due}: months are closed in order")

    def _make(self, ask: _Ask) -> Invoice:
        from_ms, until_ms = ask.month.bounds_ms(ask.book.zone)
        lines = (*self._own_lines(ask), *self._late_lines(ask))
        rounding = ask.book.rounding
        return Invoice(
            tenant=ask.tenant,
            month=str(ask.month),
            plan=ask.book.plan_of(ask.tenant),
            currency=ask.book.currency,
            time_zone=ask.book.zone.key,
            rounding_mode=rounding.mode,
            digits=rounding.digits,
            from_ms=from_ms,
            until_ms=until_ms,
            position=ask.position,
            closed_ms=ask.closed_ms,
            lines=lines,
            total=total_of(lines, rounding),
        )

    def _own_lines(self, ask: _Ask) -> Iterator[Line]:
        """Lines of what happened in the month."""
        book = ask.book
        from_ms, until_ms = ask.month.bounds_ms(book.zone)
        versions = [
            (
                midnight_ms(version.since, book.zone),
                None if version.until is None else midnight_ms(version.until, book.zone),
                version,
            )
            for version in book.plans[book.plan_of(ask.tenant)]
        ]
        for segment in segments(versions, from_ms, until_ms):
            window = Window(ask.tenant, segment.from_ms, segment.until_ms, ask.position)
            yield from price_segment(segment, self._store.quantities(window), book.rounding)
        window = Window(ask.tenant, from_ms, until_ms, ask.position)
        for entry in self._store.corrections(window):
            yield _money_line("correction", entry.reason, entry.amount)

    def _late_lines(self, ask: _Ask) -> Iterator[Line]:
        """What the months before owe since the last of them was closed."""
        from_ms, _ = ask.month.bounds_ms(ask.book.zone)
        closed = {Month.parse(i.month): i for i in self._store.invoices(ask.tenant)}
        last = next((i for m, i in closed.items() if m.next() == ask.month), None)
        if last is None:
            return
        earliest = self._store.first_moment(ask.tenant, from_ms, last.position, ask.position)
        if earliest is None:
            return
        month = month_at(earliest, ask.book.zone)
        while month < ask.month:
            book = self._book_of(closed[month]) if month in closed else ask.book
            now = self._own_total(_Ask(book, ask.tenant, month, ask.position))
            before = self._own_total(_Ask(book, ask.tenant, month, last.position))
            if now != before:
                text = f"Usage of {month}, reported after it was closed"
                yield _money_line("late", text, round_money(now - before, ask.book.rounding))
            month = month.next()

    def _own_total(self, ask: _Ask) -> Decimal:
        return total_of(self._own_lines(ask), ask.book.rounding)

    def _book_of(self, invoice: ClosedInvoice) -> PlanBook:
        name = f"the plan of {invoice.month}"
        return read_plans(self._store.plan_text(invoice.plan_digest), name)


def _money_line(part: str, description: str, amount: Decimal) -> Line:
    exact = money(_ONE, amount)
    return Line(part, description, "", _ONE, "", amount, _ONE, exact, amount)
