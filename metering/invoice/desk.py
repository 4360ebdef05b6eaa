"""The billing questions that a running metering process answers, in the ledger's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mesh.clock import Clock
from metering.invoice.billing import Billing
from metering.invoice.document import Invoice, InvoiceHead, head_of, to_csv, to_json
from metering.invoice.page import to_html
from metering.ledger import Ledger
from metering.plan_shelf import PlanShelf
from metering.plans.calendar import Month, month_at
from metering.plans.listing import plan_json

__all__ = ["WRITERS", "BillingDesk", "NoPlansError"]

WRITERS: Mapping[str, Callable[[Invoice], bytes]] = {
    "json": to_json,
    "csv": to_csv,
    "html": to_html,
}


class NoPlansError(Exception):
    """Metering was started without a plan file, and the month was never closed."""


@dataclass(frozen=True, slots=True)
class BillingDesk:
    """Billing beside a ledger that events come into; `shelf` None: nothing has a price.

    Methods raise `LedgerUnavailableError`, and where they price anything `UnpricedError`.
    """

    ledger: Ledger
    billing: Billing
    shelf: PlanShelf | None
    clock: Clock

    async def plan(self, tenant: str) -> bytes | None:
        """The tenant's plan as JSON, or None without plans."""
        shelf = self.shelf
        if shelf is None:
            return None
        now_ms = self.clock.wall_ms()
        return await self.ledger.run(lambda: plan_json(shelf.book(), tenant, now_ms))

    async def invoices(self, tenant: str) -> list[InvoiceHead]:
        """Closed invoices by month, and a draft of the running month where there are plans."""
        return await self.ledger.run(lambda: self._invoices(tenant))

    async def invoice(self, tenant: str, month: Month, form: str) -> bytes:
        """The month's closed invoice, else a draft of it. Raises `NoPlansError`."""
        return await self.ledger.run(lambda: self._invoice(tenant, month, form))

    def _invoices(self, tenant: str) -> list[InvoiceHead]:
        heads = self.billing.heads(tenant)
        if self.shelf is None:
            return heads
        book = self.shelf.book()
        running = month_at(self.clock.wall_ms(), book.zone)
        return [*heads, head_of(self.billing.draft(book, tenant, running))]

    def _invoice(self, tenant: str, month: Month, form: str) -> bytes:
        closed = self.billing.closed(tenant, month)
        if closed is not None:
            return WRITERS[form](closed)
        if self.shelf is None:
            raise NoPlansError
        return WRITERS[form](self.billing.draft(self.shelf.book(), tenant, month))
