"""The ledger counts each event once, for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from mesh.clock import SystemClock
from metering.ledger import Ledger, LedgerUnavailableError
from metering.store.sql import ModelSum, SqlStore
from tests.support.usage_events import usage_payload

ONCE = [ModelSum("smol", 1, 7, 2, 5)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    ledger = Ledger(SqlStore(url), SystemClock())
    yield ledger
    ledger.close()


async def test_same_event_at_once(ledger: Ledger) -> None:
    """CASES 100: the same id twice in one batch counts once."""
    outcome = await ledger.record([usage_payload(), usage_payload()])
    assert (len(outcome.recorded), outcome.duplicates, outcome.refusals) == (1, 1, ())
    assert await ledger.usage("acme") == ONCE


async def test_same_event_again_with_other_content(ledger: Ledger) -> None:
    """CASES 100: the first telling of an id holds; a later one changes nothing."""
    await ledger.record([usage_payload()])
    outcome = await ledger.record([usage_payload(completion_tokens=500)])
    assert (outcome.recorded, outcome.duplicates) == ((), 1)
    assert await ledger.usage("acme") == ONCE


async def test_same_event_after_restart(url: str) -> None:
    """CASES 100: the same id counts once, also when the process began anew in between."""
    for duplicates in (0, 1):
        ledger = Ledger(SqlStore(url), SystemClock())
        outcome = await ledger.record([usage_payload()])
        assert outcome.duplicates == duplicates
        assert await ledger.usage("acme") == ONCE
        ledger.close()


async def test_refused_entries_are_kept_aside(url: str) -> None:
    """What is no event is kept with its reason, once, and does not hold up its batch."""
    store = SqlStore(url)
    ledger = Ledger(store, SystemClock())
    for _ in range(2):
        outcome = await ledger.record([b"\xff", usage_payload(), usage_payload("x", v=9), b"\xff"])
        assert len(outcome.refusals) == 3
    kept = store.refused(10)
    assert {entry.payload for entry in kept} == {b"\xff", usage_payload("x", v=9)}
    assert all(entry.reason and entry.refused_ms > 0 for entry in kept)
    assert await ledger.usage("acme") == ONCE
    ledger.close()


async def test_sums_by_tenant_model_and_time(ledger: Ledger) -> None:
    """A tenant sees its own sums, per model, over ends in [from, until)."""
    await ledger.record(
        [
            usage_payload("1", ended_ms=100),
            usage_payload("2", ended_ms=200),
            usage_payload("3", ended_ms=200, model="big", completion_tokens=50),
            usage_payload("4", ended_ms=200, tenant="globex"),
        ]
    )
    assert await ledger.usage("acme") == [
        ModelSum("big", 1, 7, 2, 50),
        ModelSum("smol", 2, 14, 4, 10),
    ]
    assert await ledger.usage("acme", 0, 200) == ONCE
    assert await ledger.usage("acme", 201) == []
    assert await ledger.usage("acme", 2**64 - 1, 2**64 - 1) == []
    assert await ledger.usage("nobody") == []


async def test_a_full_batch_fits_one_statement(ledger: Ledger) -> None:
    """The largest batch that the consumer reads is one transaction."""
    outcome = await ledger.record([usage_payload(str(n)) for n in range(256)])
    assert len(outcome.recorded) == 256


async def test_database_that_fails(url: str, ledger: Ledger) -> None:
    """A database error is said as such, without its text, and the batch may come again."""
    admin = create_engine(url)
    with admin.begin() as connection:
        connection.execute(text("ALTER TABLE usage RENAME TO elsewhere"))
    with pytest.raises(LedgerUnavailableError, match=r"^OperationalError$"):
        await ledger.record([usage_payload()])
    with admin.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO usage"))
    admin.dispose()
    assert len((await ledger.record([usage_payload()])).recorded) == 1


def test_sqlite_is_durable_before_an_entry_is_acknowledged(url: str) -> None:
    """The file is in WAL mode and commits reach the disk."""
    store = SqlStore(url)
    with store._engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
    store.close()
