"""The ledger in SQL, synchronous: SQLite in a file by default, PostgreSQL by its URL.

Called from the ledger's own thread, never on an event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Engine,
    Table,
    create_engine,
    delete,
    event,
    func,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from metering.event import ConnectionClosed, Event, RequestMade, UsageEvent
from metering.store.tables import (
    ATTEMPTS,
    CONNECTIONS,
    JOURNAL,
    METADATA,
    MINUTES,
    REFUSED,
    REQUESTS,
    USAGE,
)

__all__ = ["MinuteSum", "ModelSum", "RefusedEntry", "SqlStore", "insert_new", "take_position"]

# How long a writer waits for another one (a person's sqlite3 shell, say) before it gives up.
SQLITE_BUSY_MS = 5_000
MINUTE_MS = 60_000
_BIGINT_MAX = 2**63 - 1
_SUMMED = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


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
                connection.execute(insert_new(connection, REFUSED).values(rows))
            rows_of: defaultdict[Table, list[dict[str, Any]]] = defaultdict(list)
            for taken in events:
                table, row = _row(taken)
                rows_of[table].append(row | {"position": position})
            new: set[str] = set()
            for table, rows in rows_of.items():
                statement = insert_new(connection, table).values(rows).returning(table.c.id)
                new |= set(connection.execute(statement).scalars())
            _add_streams(connection, [e for e in events if e.id in new])
            return frozenset(new)

    def sums(self, tenant: str, from_ms: int, until_ms: int | None) -> list[ModelSum]:
        """The tenant's sums per model, by name, over generations that ended in [from, until)."""
        query = (
            select(
                USAGE.c.model,
                func.count(),
                func.sum(USAGE.c.prompt_tokens),
                func.sum(USAGE.c.cached_tokens),
                func.sum(USAGE.c.completion_tokens),
            )
            .where(USAGE.c.tenant == tenant, USAGE.c.ended_ms >= min(from_ms, _BIGINT_MAX))
            .group_by(USAGE.c.model)
            .order_by(USAGE.c.model)
        )
        if until_ms is not None:
            query = query.where(USAGE.c.ended_ms < min(until_ms, _BIGINT_MAX))
        with self.engine.connect() as connection:
            # PostgreSQL sums BIGINT into NUMERIC.
            return [
                ModelSum(model, *(int(s) for s in sums))
                for model, *sums in connection.execute(query)
            ]

    def minutes(self, tenant: str, from_ms: int, until_ms: int) -> list[MinuteSum]:
        """The tenant's rollups of the minutes that begin in [from, until), by minute and model."""
        query = (
            select(MINUTES.c.model, *(MINUTES.c[n] for n in _SUMMED), MINUTES.c.minute_ms)
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


def insert_new(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that leaves rows alone which are there already."""
    return _insert(connection, table).on_conflict_do_nothing()


def take_position(connection: Connection) -> int:
    """This transaction's position; no other one gets its own before this one has ended.

    It is the first statement, so that SQLite too has the write lock from the beginning.
    """
    statement = update(JOURNAL).values(position=JOURNAL.c.position + 1)
    return int(connection.execute(statement.returning(JOURNAL.c.position)).scalar_one())


def _insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def _row(taken: Event) -> tuple[Table, dict[str, Any]]:
    row = msgspec.structs.asdict(taken)
    del row["v"]
    match taken:
        case UsageEvent():
            del row["attempts"]
            return USAGE, row | {"kind": "stream_finished"}
        case ConnectionClosed():
            for name in ("established_ms", "close_wait_ms", "bytes_in", "bytes_out", "rtt_us"):
                del row[name]
            row["ended_ms"] = taken.ended_ms
            row["bytes"] = taken.bytes_in + taken.bytes_out
            row["rtt_us_sum"] = sum(taken.rtt_us)
            row["rtt_samples"] = len(taken.rtt_us)
            return CONNECTIONS, row
        case RequestMade():
            # The prefixes keep a client from choosing an id that is some event's.
            named = row.pop("idempotency_id")
            row["counted_as"] = f"named:{named}" if named else f"event:{taken.id}"
            return REQUESTS, row


def _add_streams(connection: Connection, new: Sequence[Event]) -> None:
    """What follows from new finished generations: their attempts and their minutes."""
    attempts: list[dict[str, Any]] = []
    minutes: defaultdict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for stream in new:
        if not isinstance(stream, UsageEvent):
            continue
        for number, attempt in enumerate(stream.attempts):
            row = {"id": stream.id, "number": number} | msgspec.structs.asdict(attempt)
            attempts.append(row)
        sums = minutes[stream.tenant, stream.model, stream.ended_ms // MINUTE_MS * MINUTE_MS]
        counts = (1, stream.prompt_tokens, stream.cached_tokens, stream.completion_tokens)
        sums[:] = [old + more for old, more in zip(sums, counts, strict=True)]
    if attempts:
        connection.execute(insert_new(connection, ATTEMPTS), attempts)
    if minutes:
        statement = _insert(connection, MINUTES)
        statement = statement.on_conflict_do_update(
            index_elements=["tenant", "model", "minute_ms"],
            set_={name: MINUTES.c[name] + statement.excluded[name] for name in _SUMMED},
        )
        keys = ("tenant", "model", "minute_ms", *_SUMMED)
        # In one order everywhere: two writers that lock rows cross-wise would wait for ever.
        rows = [dict(zip(keys, (*k, *s), strict=True)) for k, s in sorted(minutes.items())]
        connection.execute(statement, rows)


def _rebuild_minutes(connection: Connection) -> None:
    connection.execute(delete(MINUTES))
    minute = (USAGE.c.ended_ms - USAGE.c.ended_ms % MINUTE_MS).label("minute_ms")
    sums = (func.sum(USAGE.c[name]) for name in _SUMMED[1:])
    query = select(USAGE.c.tenant, USAGE.c.model, minute, func.count(), *sums)
    query = query.group_by(USAGE.c.tenant, USAGE.c.model, minute)
    columns = ["tenant", "model", "minute_ms", *_SUMMED]
    connection.execute(_insert(connection, MINUTES).from_select(columns, query))


def _make_tables(engine: Engine) -> None:
    inspector = inspect(engine)
    known = set(inspector.get_table_names())
    # Ledgers of the first days have generations only, without positions and rollups.
    aged = USAGE.name in known and JOURNAL.name not in known
    METADATA.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert_new(connection, JOURNAL).values(id=0, position=0))
        if aged:
            if "position" not in {c["name"] for c in inspector.get_columns(USAGE.name)}:
                add = "ALTER TABLE usage ADD COLUMN position BIGINT NOT NULL DEFAULT 0"
                connection.execute(text(add))
            _rebuild_minutes(connection)


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
    cursor.close()
