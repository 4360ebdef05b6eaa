"""A metering service's parts over a ledger file."""

from __future__ import annotations

from pathlib import Path

from mesh.clock import Clock, SystemClock
from metering.invoice.billing import Billing
from metering.invoice.desk import BillingDesk
from metering.ledger import Ledger
from metering.plan_shelf import PlanShelf
from metering.store.billing import BillingStore
from metering.store.sql import SqlStore

__all__ = ["open_desk"]


def open_desk(folder: Path, plans: Path | None = None, clock: Clock | None = None) -> BillingDesk:
    """A ledger in the folder and the desk on it; close its `ledger`."""
    clock = clock or SystemClock()
    store = SqlStore(f"sqlite:///{folder}/ledger.db")
    shelf = PlanShelf(plans) if plans else None
    return BillingDesk(Ledger(store, clock), Billing(BillingStore(store.engine)), shelf, clock)
