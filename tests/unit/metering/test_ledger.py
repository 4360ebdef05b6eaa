"""The ledger counts each event once, for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from mesh.clock import SystemClock
from metering.ledger import Ledger, LedgerUnavailableError
from metering.store.sql import MinuteSum, ModelSum, RefusedEntry, SqlStore
from tests.support.usage_events import connection_payload, request_payload, usage_payload

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
            usage_payload("1", started_ms=100),
            usage_payload("2", started_ms=200),
            usage_payload("3", started_ms=200, model="big", completion_tokens=50),
            usage_payload("4", started_ms=200, tenant="globex"),
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
    with store.engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
    store.close()


async def test_every_kind_counts_once(ledger: Ledger) -> None:
    """CASES 100: connections and requests are known by their ids as generations are."""
    batch = [usage_payload(), connection_payload(), request_payload()]
    assert len((await ledger.record(batch)).recorded) == 3
    assert (await ledger.record(batch)).duplicates == 3


async def test_resends_with_one_idempotency_id_count_once(ledger: Ledger) -> None:
    """CASES 102: three retries and the success are one request when the client named it so."""
    resends = [request_payload(str(n), idempotency_id="order-7") for n in range(4)]
    assert len((await ledger.record(resends[:2])).recorded) == 1
    assert len((await ledger.record(resends[2:])).recorded) == 0
    other = request_payload("x", idempotency_id="order-7", tenant="globex")
    assert len((await ledger.record([other])).recorded) == 1
    # Named as another request's event: nobody's request is swallowed by somebody's name.
    await ledger.record([request_payload("r1"), request_payload("r2", idempotency_id="event:r1")])
    assert (await ledger.record([request_payload("r1")])).duplicates == 1


async def test_sums_of_one_key_and_of_what_had_ended(ledger: Ledger) -> None:
    """What a budget is told it has spent: the generations of its key that began in its period and ended before a moment."""
    await ledger.record(
        [
            usage_payload("1", key="web", started_ms=1_000, ended_ms=4_000),
            usage_payload("2", key="web", started_ms=2_000, ended_ms=9_000),
            usage_payload("3", key="job", started_ms=3_000, ended_ms=3_500),
            usage_payload("4", key="web", started_ms=900, ended_ms=4_000),
        ]
    )
    [web] = await ledger.usage("acme", 1_000, None, "web", 5_000)
    assert web.requests == 1
    [every] = await ledger.usage("acme", 1_000, None, "", 5_000)
    assert every.requests == 2
    assert await ledger.usage("acme", 1_000, None, "nobody") == []


async def test_minutes_follow_late_events_and_can_be_rebuilt(url: str) -> None:
    """An event adds to the minute in which it began, whenever it comes; a rebuild says the same."""
    store = SqlStore(url)
    ledger = Ledger(store, SystemClock())
    await ledger.record(
        [usage_payload("1", started_ms=120_000), usage_payload("2", started_ms=59_999)]
    )
    await ledger.record([usage_payload("3", started_ms=179_999), usage_payload("2")])
    told = [MinuteSum("smol", 1, 7, 2, 5, 0), MinuteSum("smol", 2, 14, 4, 10, 120_000)]
    assert await ledger.minutes("acme", 0, 180_000) == told
    assert await ledger.minutes("acme", 0, 120_000) == told[:1]
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE minutes SET requests = 99"))
    store.rebuild_minutes()
    assert await ledger.minutes("acme", 0, 180_000) == told
    ledger.close()


async def test_event_of_a_later_release_waits_for_it(url: str) -> None:
    """What was refused for its version is kept, and taken up, once, by who understands it."""
    store = SqlStore(url)
    ledger = Ledger(store, SystemClock())
    await ledger.record([usage_payload("later", v=9)])
    assert await ledger.take_up_refused() == 0
    # As if an older release had refused what this one knows.
    store.write((), [RefusedEntry("d", "unknown kind", request_payload(), 1)])
    assert await ledger.take_up_refused() == 1
    assert [e.payload for e in store.refused(10)] == [usage_payload("later", v=9)]
    assert (await ledger.record([request_payload()])).duplicates == 1
    ledger.close()


async def test_ledger_of_the_first_days_is_taken_over(url: str) -> None:
    """A file without positions and rollups gets them, and forgets no id."""
    ledger = Ledger(SqlStore(url), SystemClock())
    await ledger.record([usage_payload()])
    ledger.close()
    admin = create_engine(url)
    with admin.begin() as connection:
        connection.execute(text("DROP INDEX usage_by_tenant_and_start"))
        connection.execute(text("CREATE INDEX usage_by_tenant_and_end ON usage (tenant, ended_ms)"))
        for column in ("position", '"key"'):
            connection.execute(text(f"ALTER TABLE usage DROP COLUMN {column}"))
        for table in ("journal", "minutes", "connections", "requests", "attempts"):
            connection.execute(text(f"DROP TABLE {table}"))
    admin.dispose()
    ledger = Ledger(SqlStore(url), SystemClock())
    assert (await ledger.record([usage_payload(), usage_payload("new")])).duplicates == 1
    assert await ledger.minutes("acme", 0, 60_000) == [MinuteSum("smol", 2, 14, 4, 10, 0)]
    ledger.close()
