"""The ledger and its bills on a real PostgreSQL server, named by SEEDANCE_TEST_POSTGRES."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from metering.event import parse_event
from metering.invoice.billing import Billing
from metering.plans.calendar import Month
from metering.store.billing import BillingStore
from metering.store.books import BookStore
from metering.store.sql import MinuteSum, ModelSum, SqlStore
from tests.support.plans import ALL_MODES, book
from tests.support.usage_events import (
    connection_payload,
    opening_payload,
    request_payload,
    usage_payload,
)

SERVER = os.environ.get("SEEDANCE_TEST_POSTGRES", "")
NOVEMBER, NOVEMBER_MS, LATER_MS = Month(2026, 11), 1_793_491_200_000, 1_900_000_000_000

pytestmark = pytest.mark.skipif(
    not SERVER, reason="SEEDANCE_TEST_POSTGRES is not set: postgresql+psycopg://user@host/database"
)


@pytest.fixture
def store() -> Iterator[SqlStore]:
    """A ledger in a schema of its own."""
    schema = f"test_{secrets.token_hex(6)}"
    admin = create_engine(SERVER, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    url = make_url(SERVER).update_query_dict({"options": f"-csearch_path={schema}"})
    made = SqlStore(url.render_as_string(hide_password=False))
    yield made
    made.close()
    with admin.connect() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    admin.dispose()


def test_every_kind_counts_once(store: SqlStore) -> None:
    """CASES 100: one primary key for ever, and sums as SQLite makes them."""
    batch = [parse_event(p()) for p in (usage_payload, connection_payload, request_payload)]
    assert len(store.write(batch, ())) == 3
    assert store.write(batch, ()) == frozenset()
    assert store.sums("acme", 0, None) == [ModelSum("smol", 1, 7, 2, 5)]
    assert store.minutes("acme", 0, 60_000) == [MinuteSum("smol", 1, 7, 2, 5, 0)]
    store.rebuild_minutes()
    assert store.minutes("acme", 0, 60_000) == [MinuteSum("smol", 1, 7, 2, 5, 0)]


def test_a_full_batch_and_its_tokens_books(store: SqlStore) -> None:
    """Thousands of events in one transaction, a part of them known: new ones are told, days balance."""
    books = {"computed_tokens": 6, "discarded_tokens": 1, "gateway": "g"}
    events = [parse_event(usage_payload(f"{n}", **books)) for n in range(3_000)]
    assert len(store.write(events[:500], ())) == 500
    new = store.write([*events, parse_event(opening_payload())], ())
    assert new == {f"{n}" for n in range(500, 3_000)} | {"g1/c1/connection_opened"}
    (day,) = BookStore(store.engine).days()
    assert (day.streams, day.computed, day.balanced) == (3_000, 18_000, True)
    store.write([parse_event(usage_payload("odd", computed_tokens=9, discarded_tokens=0))], ())
    (day,) = BookStore(store.engine).days()
    assert not day.balanced
    assert BookStore(store.engine).different_streams(day.day_ms, 5) == ["odd"]


def test_writers_at_once(store: SqlStore) -> None:
    """Eight writers of overlapping batches: each event once, minutes exact, positions in order."""

    def write(writer: int) -> int:
        names = [f"{n}" for n in range(writer, writer + 40)]
        return len(store.write([parse_event(usage_payload(name)) for name in names], ()))

    with ThreadPoolExecutor(8) as writers:
        new = sum(writers.map(write, range(0, 80, 10)))
    assert new == 110
    assert store.minutes("acme", 0, 60_000) == [MinuteSum("smol", 110, 770, 220, 550, 0)]
    assert BillingStore(store.engine).newest_position() == 8


def test_invoice_is_closed_once_and_comes_again(store: SqlStore) -> None:
    """All ways of charging at once; closers race, and one document stands and reproduces."""
    billing = Billing(BillingStore(store.engine))
    plans = book(ALL_MODES)
    attempts = [
        {"model": "smol", "instance": "i-0", "completion_tokens": 2},
        {"model": "big", "instance": "i-1", "completion_tokens": 3},
    ]
    events = [
        usage_payload(started_ms=NOVEMBER_MS, attempts=attempts),
        connection_payload(opened_ms=NOVEMBER_MS, bytes_out=10, rtt_us=[1, 2, 4]),
        request_payload(at_ms=NOVEMBER_MS),
    ]
    store.write([parse_event(event) for event in events], ())
    with ThreadPoolExecutor(4) as closers:
        moments = range(LATER_MS, LATER_MS + 4)
        documents = set(closers.map(lambda ms: billing.close(plans, "acme", NOVEMBER, ms), moments))
    assert len(documents) == 1
    store.write([parse_event(usage_payload("late", started_ms=NOVEMBER_MS))], ())
    assert billing.reproduces("acme", NOVEMBER)
