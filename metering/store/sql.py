"""The ledger in SQL, synchronous: SQLite in a file by default, PostgreSQL by its URL.

Called from the ledger's own thread, never on an event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Inspector,
    create_engine,
    delete,
    event,
    func,
    inspect,
    select,
    text,
)

from metering.event import Event
from metering.store.intake import MINUTE_MS, SUMMED, insert_new, take_events, take_position
from metering.store.tables import (
    JOURNAL,
    METADATA,
    MINUTES,
    REFUSED,
    USAGE,
    USAGE_BY_START,
)

__all__ = ["MinuteSum", "ModelSum", "RefusedEntry", "SqlStore"]

# How long a writer waits for another one (a person's sqlite3 shell, say) before it gives up.
SQLITE_BUSY_MS = 5_000
# Random ids walk all over a primary key's index: with the default of 2 MiB it is read again and again. More than
# this saves nothing (the system keeps the file's pages, too), and is most of what metering's memory grows by.
SQLITE_CACHE_KIB = 8 * 1024
# Pages of 4 KiB in the log before they go to their places in the file: a batch touches thousands, the next one many
# of them again, and with the default of 1,000 each would be written twice for each batch.
SQLITE_LOG_PAGES = 16_384
_BIGINT_MAX = 2**63 - 1
_LATER_COLUMNS = {
    "position": "BIGINT NOT NULL DEFAULT 0",
    "key": "VARCHAR NOT NULL DEFAULT ''",
    "computed_tokens": "BIGINT",
    "discarded_tokens": "BIGINT",
    "acknowledged_tokens": "BIGINT",
    "retained_tokens": "BIGINT",
}


@dataclass(frozen=True, slots=True)
class RefusedEntry:
    """An entry of the usage stream that is no event, and why."""

    digest: str
    reason: str
    payload: bytes
    refused_ms: int


@dataclass(frozen=True, slots=True)
class ModelSum:
    """Sums over one model's finished generations."""

    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class MinuteSum(ModelSum):
    """The same over one minute, named by its first millisecond."""

    minute_ms: int


class SqlStore:
    """Tables behind a SQLAlchemy URL; they are made when they are not there.

    Methods raise `sqlalchemy.exc.SQLAlchemyError` when the database does not answer.
    """

    def __init__(self, url: str) -> None:
        self.engine = _open_engine(url)
        _make_tables(self.engine)

    def write(self, events: Sequence[Event], refused: Sequence[RefusedEntry]) -> frozenset[str]:
        """Write all in one transaction; returns the ids that were new."""
        with self.engine.begin() as connection:
            position = take_position(connection)
            if refused:
                rows = [{f: getattr(r, f) for f in r.__slots__} for r in refused]
                connection.execute(insert_new(connection, REFUSED), rows)
            return take_events(connection, events, position)

    def sums(
        self,
        tenant: str,
        from_ms: int,
        until_ms: int | None,
        key: str = "",
        ended_before_ms: int | None = None,
    ) -> list[ModelSum]:
        """The tenant's sums per model, by name, over generations that began in [from, until).

        Only those asked for with `key`, where it is not empty, and that ended before a moment.
        """
        query = (
            select(
                USAGE.c.model,
                func.count(),
                func.sum(USAGE.c.prompt_tokens),
                func.sum(USAGE.c.cached_tokens),
                func.sum(USAGE.c.completion_tokens),
            )
            .where(USAGE.c.tenant == tenant, USAGE.c.started_ms >= min(from_ms, _BIGINT_MAX))
            .group_by(USAGE.c.model)
            .order_by(USAGE.c.model)
        )
        if until_ms is not None:
            query = query.where(USAGE.c.started_ms < min(until_ms, _BIGINT_MAX))
        if key:
            query = query.where(USAGE.c.key == key)
        if ended_before_ms is not None:
            query = query.where(USAGE.c.ended_ms < min(ended_before_ms, _BIGINT_MAX))
        with self.engine.connect() as connection:
            # PostgreSQL sums BIGINT into NUMERIC.
            return [
                ModelSum(model, *(int(s) for s in sums))
                for model, *sums in connection.execute(query)
            ]

    def minutes(self, tenant: str, from_ms: int, until_ms: int) -> list[MinuteSum]:
        """The tenant's rollups of the minutes that begin in [from, until), by minute and model."""
        query = (
            select(MINUTES.c.model, *(MINUTES.c[n] for n in SUMMED), MINUTES.c.minute_ms)
            .where(MINUTES.c.tenant == tenant, MINUTES.c.minute_ms.between(from_ms, until_ms - 1))
            .order_by(MINUTES.c.minute_ms, MINUTES.c.model)
        )
        with self.engine.connect() as connection:
            return [MinuteSum(**row) for row in connection.execute(query).mappings()]

    def rebuild_minutes(self) -> None:
        """Make every rollup again out of the events, in one transaction."""
        with self.engine.begin() as connection:
            take_position(connection)  # nobody adds to a minute meanwhile
            _rebuild_minutes(connection)

    def refused(self, limit: int) -> list[RefusedEntry]:
        """The newest refused entries, for a person to look at."""
        query = select(REFUSED).order_by(REFUSED.c.refused_ms.desc()).limit(limit)
        with self.engine.connect() as connection:
            return [RefusedEntry(**row) for row in connection.execute(query).mappings()]

    def refused_pages(self, size: int) -> Iterator[list[RefusedEntry]]:
        """All refused entries, `size` at a time, by digest."""
        after = ""
        while True:
            query = select(REFUSED).where(REFUSED.c.digest > after)
            with self.engine.connect() as connection:
                rows = connection.execute(query.order_by(REFUSED.c.digest).limit(size)).mappings()
                page = [RefusedEntry(**row) for row in rows]
            if not page:
                return
            yield page
            after = page[-1].digest

    def drop_refused(self, digests: Sequence[str]) -> None:
        """Forget refused entries that have become events."""
        with self.engine.begin() as connection:
            connection.execute(delete(REFUSED).where(REFUSED.c.digest.in_(digests)))

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()


def _rebuild_minutes(connection: Connection) -> None:
    connection.execute(delete(MINUTES))
    minute = (USAGE.c.started_ms - USAGE.c.started_ms % MINUTE_MS).label("minute_ms")
    sums = (func.sum(USAGE.c[name]) for name in SUMMED[1:])
    query = select(USAGE.c.tenant, USAGE.c.model, minute, func.count(), *sums)
    query = query.group_by(USAGE.c.tenant, USAGE.c.model, minute)
    columns = ["tenant", "model", "minute_ms", *SUMMED]
    connection.execute(MINUTES.insert().from_select(columns, query))


def _make_tables(engine: Engine) -> None:
    inspector = inspect(engine)
    known = set(inspector.get_table_names())
    # Ledgers of the first days have no rollups, or those of the minutes in which generations ended.
    aged = USAGE.name in known and not _has_index(inspector)
    METADATA.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert_new(connection, JOURNAL).values(id=0, position=0))
        _add_columns(connection)
        if aged:
            connection.execute(text("DROP INDEX IF EXISTS usage_by_tenant_and_end"))
            USAGE_BY_START.create(connection)
            _rebuild_minutes(connection)


def _has_index(inspector: Inspector) -> bool:
    return USAGE_BY_START.name in {index["name"] for index in inspector.get_indexes(USAGE.name)}


def _add_columns(connection: Connection) -> None:
    """Columns that the ledger's first releases did not have."""
    there = {column["name"] for column in inspect(connection).get_columns(USAGE.name)}
    for name, kind in _LATER_COLUMNS.items():
        if name not in there:
            connection.execute(text(f"ALTER TABLE usage ADD COLUMN {name} {kind}"))


def _open_engine(url: str) -> Engine:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_pragmas)
    return engine


def _set_pragmas(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # WAL lets readers in beside the writer; FULL because an entry is acknowledged to the stream
    # after the commit and must then survive a power cut.
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA busy_timeout={SQLITE_BUSY_MS}")
    cursor.execute(f"PRAGMA cache_size=-{SQLITE_CACHE_KIB}")
    cursor.execute(f"PRAGMA wal_autocheckpoint={SQLITE_LOG_PAGES}")
    cursor.close()
