"""What bills read from the ledger and write into it, synchronous.

Every question names a position: the answer is the same for ever, whatever was recorded later.
Methods raise `sqlalchemy.exc.SQLAlchemyError` when the database does not answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Engine, Table, func, select

from metering.invoice.quantities import ConnectionSpan, ModelTokens, Quantities, sum_connections
from metering.store.intake import insert_new, take_position
from metering.store.tables import (
    ATTEMPTS,
    CONNECTIONS,
    CORRECTIONS,
    INVOICES,
    JOURNAL,
    PLAN_TEXTS,
    REQUESTS,
    USAGE,
)

__all__ = ["BillingStore", "ClosedInvoice", "Correction", "Window"]

_FETCH_ROWS = 1_000
# The moments that a row bears: a generation counts when it began, a connection from its opening on.
_MOMENTS: Sequence[tuple[Table, str]] = (
    (USAGE, "started_ms"),
    (REQUESTS, "at_ms"),
    (CORRECTIONS, "at_ms"),
    (CONNECTIONS, "opened_ms"),
)


@dataclass(frozen=True, slots=True)
class Window:
    """Whose rows, in [from, until), of the ledger at `position`."""

    tenant: str
    from_ms: int
    until_ms: int
    position: int


@dataclass(frozen=True, slots=True)
class Correction:
    """Money by hand: negative is given to the tenant. `amount` is rounded already."""

    id: str
    tenant: str
    at_ms: int
    amount: Decimal
    reason: str


@dataclass(frozen=True, slots=True)
class ClosedInvoice:
    """A closed invoice and what it can be made from again."""

    tenant: str
    month: str
    position: int
    plan_digest: str
    closed_ms: int
    document: bytes


class BillingStore:
    """The billing side of a ledger's database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def position(self) -> int:
        """The newest position: everything up to it is committed, and everything later is higher."""
        with self._engine.begin() as connection:
            return take_position(connection)

    def newest_position(self) -> int:
        """The same without waiting for writers: of a state that a reader may see changed."""
        with self._engine.connect() as connection:
            return int(connection.execute(select(JOURNAL.c.position)).scalar_one())

    def quantities(self, window: Window) -> Quantities:
        """Everything a plan may charge for."""
        with self._engine.connect() as connection:
            query = select(func.count()).where(_within(REQUESTS, "at_ms", window))
            requests = connection.execute(query).scalar_one()
        return Quantities(
            self._tokens(window),
            requests,
            sum_connections(self._connections(window), window.from_ms, window.until_ms),
        )

    def corrections(self, window: Window) -> list[Correction]:
        """Corrections by moment and id."""
        query = select(CORRECTIONS).where(_within(CORRECTIONS, "at_ms", window))
        query = query.order_by(CORRECTIONS.c.at_ms, CORRECTIONS.c.id)
        with self._engine.connect() as connection:
            return [
                Correction(row.id, row.tenant, row.at_ms, Decimal(row.amount), row.reason)
                for row in connection.execute(query)
            ]

    def add_correction(self, correction: Correction) -> bool:
        """Record a correction; False: its id is known, and the first telling holds."""
        row: dict[str, Any] = {f: getattr(correction, f) for f in correction.__slots__}
        row["amount"] = str(correction.amount)
        with self._engine.begin() as connection:
            row["position"] = take_position(connection)
            statement = insert_new(connection, CORRECTIONS).values(row)
            return connection.execute(statement.returning(CORRECTIONS.c.id)).first() is not None

    def first_moment(self, tenant: str, before_ms: int, after: int, position: int) -> int | None:
        """The earliest moment before `before_ms` of rows with positions in (after, position]."""
        lows: list[int] = []
        with self._engine.connect() as connection:
            for table, moment in _MOMENTS:
                query = select(func.min(table.c[moment])).where(
                    table.c.tenant == tenant,
                    table.c[moment] < before_ms,
                    table.c.position > after,
                    table.c.position <= position,
                )
                low = connection.execute(query).scalar_one()
                lows += [] if low is None else [low]
        return min(lows, default=None)

    def invoice(self, tenant: str, month: str) -> ClosedInvoice | None:
        """A closed invoice."""
        query = select(INVOICES).where(INVOICES.c.tenant == tenant, INVOICES.c.month == month)
        with self._engine.connect() as connection:
            row = connection.execute(query).mappings().first()
            return ClosedInvoice(**row) if row else None

    def invoices(self, tenant: str) -> list[ClosedInvoice]:
        """The tenant's closed invoices, by month."""
        query = select(INVOICES).where(INVOICES.c.tenant == tenant).order_by(INVOICES.c.month)
        with self._engine.connect() as connection:
            return [ClosedInvoice(**row) for row in connection.execute(query).mappings()]

    def add_invoice(self, invoice: ClosedInvoice, plan_text: bytes) -> ClosedInvoice:
        """Close it; whoever comes second gets the first one's."""
        row = {f: getattr(invoice, f) for f in invoice.__slots__}
        plan = {"digest": invoice.plan_digest, "text": plan_text}
        with self._engine.begin() as connection:
            connection.execute(insert_new(connection, PLAN_TEXTS).values(plan))
            connection.execute(insert_new(connection, INVOICES).values(row))
        return self.invoice(invoice.tenant, invoice.month) or invoice

    def plan_text(self, digest: str) -> bytes:
        """The plan file that an invoice was closed with."""
        query = select(PLAN_TEXTS.c.text).where(PLAN_TEXTS.c.digest == digest)
        with self._engine.connect() as connection:
            return bytes(connection.execute(query).scalar_one())

    def tenants(self) -> list[str]:
        """Everybody the ledger knows, by name."""
        names: set[str] = set()
        with self._engine.connect() as connection:
            for table, _ in _MOMENTS:
                names |= set(connection.execute(select(table.c.tenant).distinct()).scalars())
        return sorted(names)

    def _tokens(self, window: Window) -> tuple[ModelTokens, ...]:
        """Per model. The prompt is the ending model's, once; output is whose attempt framed it."""
        within = _within(USAGE, "started_ms", window)
        names = ("prompt_tokens", "cached_tokens", "completion_tokens")
        whole = select(USAGE.c.model, *(func.sum(USAGE.c[n]) for n in names)).where(within)
        made = func.sum(ATTEMPTS.c.completion_tokens)
        parted = (
            select(USAGE.c.model, ATTEMPTS.c.model, made)
            .join(ATTEMPTS, ATTEMPTS.c.id == USAGE.c.id)
            .where(within, USAGE.c.model != ATTEMPTS.c.model)
            .group_by(USAGE.c.model, ATTEMPTS.c.model)
        )
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        with self._engine.connect() as connection:
            for model, *counts in connection.execute(whole.group_by(USAGE.c.model)):
                sums[model] = [int(count) for count in counts]
            for ended, maker, count in connection.execute(parted):
                sums[ended][2] -= int(count)
                sums[maker][2] += int(count)
        return tuple(ModelTokens(model, *sums[model]) for model in sorted(sums))

    def _connections(self, window: Window) -> Iterator[ConnectionSpan]:
        columns = ("opened_ms", "ended_ms", "bytes", "rtt_us_sum", "rtt_samples")
        query = (
            select(*(CONNECTIONS.c[name] for name in columns))
            .where(
                CONNECTIONS.c.tenant == window.tenant,
                CONNECTIONS.c.ended_ms >= window.from_ms,
                CONNECTIONS.c.opened_ms < window.until_ms,
                CONNECTIONS.c.position <= window.position,
            )
            .order_by(CONNECTIONS.c.opened_ms)
        )
        with self._engine.connect() as connection:
            options = connection.execution_options(yield_per=_FETCH_ROWS)
            for row in options.execute(query):
                yield ConnectionSpan(*row)


def _within(table: Table, moment: str, window: Window) -> ColumnElement[bool]:
    return (
        (table.c.tenant == window.tenant)
        & (table.c[moment] >= window.from_ms)
        & (table.c[moment] < window.until_ms)
        & (table.c.position <= window.position)
    )
