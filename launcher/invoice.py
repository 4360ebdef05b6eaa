"""`seedance invoice`: drafts, closed invoices, and checks, straight from the ledger."""

from __future__ import annotations

import re
import sys
from decimal import Decimal
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from mesh.clock import SystemClock
from mesh.document import DocumentError
from mesh.settings import exit_with
from metering.invoice.billing import Billing, CannotCloseError
from metering.invoice.desk import WRITERS
from metering.invoice.pricing import UnpricedError
from metering.plan_shelf import load_plans
from metering.plans.calendar import Month
from metering.store.billing import BillingStore, Correction
from metering.store.sql import SqlStore

__all__ = ["correction_of", "ledger_url", "run_correction", "run_invoice", "write_out"]

_AMOUNT = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,18})?")


def ledger_url(ledger: str, data: Path) -> str:
    """The ledger that is meant: the one named, else that of the local mesh in the data folder."""
    if ledger:
        return ledger
    file = data / "ledger.db"
    if not file.exists():
        exit_with(f"there is no {file}; name the ledger with --ledger or its folder with --data")
    return f"sqlite:///{file}"


def run_invoice(
    url: str,
    plans: Path,
    *,
    tenant: str,
    month: str,
    close: bool,
    form: str,
    output: Path | None,
) -> None:
    """Write one invoice; `close`: for good, `form`: json, csv or html. Every refusal is one line and ends the process."""
    try:
        named = Month.parse(month)
        store = SqlStore(url)
    except ValueError as error:
        exit_with(f"--month {month!r}: {error}")
    except (SQLAlchemyError, ImportError, OSError):
        # The URL may hold a password, and the driver's message the URL.
        exit_with("cannot open the ledger")
    try:
        document = _invoice(store, plans, tenant, named, close=close, form=form)
    except DocumentError as error:
        exit_with(str(error))
    except (UnpricedError, CannotCloseError) as error:
        exit_with(f"{tenant}, {month}: {error}")
    except SQLAlchemyError as error:
        exit_with(f"the ledger does not answer ({type(error).__name__})")
    finally:
        store.close()
    write_out(document, output)


def run_correction(url: str, plans: Path, correction: Correction) -> None:
    """Record money by hand, rounded as the plan file says."""
    try:
        book = load_plans(plans)
        store = SqlStore(url)
        amount = Billing(BillingStore(store.engine)).correct(book, correction)
        store.close()
    except DocumentError as error:
        exit_with(str(error))
    except (SQLAlchemyError, ImportError, OSError):
        exit_with("cannot write to the ledger")
    print(f"{correction.tenant}: {amount:f} {book.currency}, once, as {correction.id}")


def correction_of(name: str, tenant: str, amount: str, reason: str) -> Correction:
    """A correction of this moment; ends the process when the amount is none."""
    if not _AMOUNT.fullmatch(amount):
        exit_with(f"--amount {amount!r}: write a decimal such as -20 or 14.28")
    return Correction(name, tenant, SystemClock().wall_ms(), Decimal(amount), reason)


def write_out(document: bytes, output: Path | None) -> None:
    """To the file, or to standard output."""
    if output is None:
        sys.stdout.buffer.write(document)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(document)
    except OSError as error:
        exit_with(f"cannot write {output}: {error.strerror}")


def _invoice(
    store: SqlStore, plans: Path, tenant: str, month: Month, *, close: bool, form: str
) -> bytes:
    billing = Billing(BillingStore(store.engine))
    closed = billing.closed(tenant, month)
    if closed is not None:
        if not billing.reproduces(tenant, month):
            exit_with(
                f"{tenant}, {month}: made again, the closed invoice differs from what was sent"
            )
        return WRITERS[form](closed)
    if store.refused(1):
        sys.stderr.write("seedance: the ledger keeps entries aside that it does not understand\n")
    book = load_plans(plans)
    if close:
        billing.close(book, tenant, month, SystemClock().wall_ms())
    made = billing.closed(tenant, month) or billing.draft(book, tenant, month)
    if not made.lines:
        sys.stderr.write(f"seedance: {tenant} used nothing in {month} ({book.zone.key})\n")
    return WRITERS[form](made)
