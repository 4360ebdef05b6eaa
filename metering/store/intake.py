"""Events on their way into the tables: each once, many at a time.

A batch is one INSERT for each table, run for all its rows by the driver, which leaves alone what is
there. Which rows were new is then told by their position, that no earlier transaction had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, select, update
from sqlalchemy.dialects import postgresql, sqlite

from metering.event import ConnectionClosed, ConnectionOpened, Event, RequestMade, UsageEvent
from metering.store.tables import (
    ATTEMPTS,
    CONNECTIONS,
    JOURNAL,
    MINUTES,
    OPENINGS,
    REQUESTS,
    USAGE,
)

__all__ = ["MINUTE_MS", "SUMMED", "insert_new", "take_events", "take_position"]

MINUTE_MS = 60_000
SUMMED = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
# Ids in one question; databases bound a statement's parameters.
_ASK_IDS_MAX = 500

Row = dict[str, Any]

_STREAM_COLUMNS = tuple(c.name for c in USAGE.columns if c.name not in ("kind", "position"))


def insert_new(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that leaves rows alone which are there already."""
    return _insert(connection, table).on_conflict_do_nothing()


def take_position(connection: Connection) -> int:
    """This transaction's position; no other one gets its own before this one has ended.

    It is the first statement, so that SQLite too has the write lock from the beginning.
    """
    statement = update(JOURNAL).values(position=JOURNAL.c.position + 1)
    return int(connection.execute(statement.returning(JOURNAL.c.position)).scalar_one())


def take_events(connection: Connection, events: Sequence[Event], position: int) -> frozenset[str]:
    """Write events with distinct ids, and what follows from them; returns the ids that were new."""
    rows_of: defaultdict[Table, list[Row]] = defaultdict(list)
    for taken in events:
        table, row = _row(taken, position)
        rows_of[table].append(row)
    new: set[str] = set()
    for table, rows in rows_of.items():
        new |= _insert_rows(connection, table, rows, position)
    streams = [e for e in events if isinstance(e, UsageEvent) and e.id in new]
    _add_attempts(connection, streams)
    _add_minutes(connection, streams)
    return frozenset(new)


def _insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def _insert_rows(
    connection: Connection, table: Table, rows: Sequence[Row], position: int
) -> set[str]:
    statement, parameters = _written(insert_new(connection, table), connection, rows)
    counted = connection.exec_driver_sql(statement, parameters, {"preserve_rowcount": True})
    ids = [row["id"] for row in rows]
    if counted.rowcount == len(rows):
        return set(ids)
    new: set[str] = set()
    for start in range(0, len(ids), _ASK_IDS_MAX):
        asked = table.c.id.in_(ids[start : start + _ASK_IDS_MAX])
        query = select(table.c.id).where(asked, table.c.position == position)
        new |= set(connection.execute(query).scalars())
    return new


def _written(
    statement: sqlite.Insert | postgresql.Insert, connection: Connection, rows: Sequence[Row]
) -> tuple[str, list[Any]]:
    """The statement as the driver is told it: SQLAlchemy's own way costs more for a row than the database's."""
    compiled = statement.compile(dialect=connection.dialect, column_keys=list(rows[0]))
    names = compiled.positiontup
    if names is None:
        return str(compiled), list(rows)
    of_names = itemgetter(*names)
    return str(compiled), [of_names(row) for row in rows]


def _row(taken: Event, position: int) -> tuple[Table, Row]:
    match taken:
        case UsageEvent():
            row = {name: getattr(taken, name) for name in _STREAM_COLUMNS}
            row["kind"], row["position"] = "stream_finished", position
            return USAGE, row
        case RequestMade():
            # The prefixes keep a client from choosing an id that is some event's.
            named = taken.idempotency_id
            return REQUESTS, {
                "id": taken.id,
                "tenant": taken.tenant,
                "at_ms": taken.at_ms,
                "outcome": taken.outcome,
                "counted_as": f"named:{named}" if named else f"event:{taken.id}",
                "position": position,
            }
        case ConnectionOpened():
            return OPENINGS, {
                "id": taken.id,
                "tenant": taken.tenant,
                "gateway": taken.gateway,
                "opened_ms": taken.opened_ms,
                "mode": taken.mode,
                "position": position,
            }
        case ConnectionClosed():
            return CONNECTIONS, {
                "id": taken.id,
                "tenant": taken.tenant,
                "gateway": taken.gateway,
                "opened_ms": taken.opened_ms,
                "ended_ms": taken.ended_ms,
                "time_wait_ms": taken.time_wait_ms,
                "bytes": taken.bytes_in + taken.bytes_out,
                "rtt_us_sum": sum(taken.rtt_us),
                "rtt_samples": len(taken.rtt_us),
                "position": position,
            }


def _add_attempts(connection: Connection, streams: Sequence[UsageEvent]) -> None:
    rows = [
        {"id": stream.id, "number": number} | msgspec.structs.asdict(attempt)
        for stream in streams
        for number, attempt in enumerate(stream.attempts)
    ]
    if rows:
        connection.execute(insert_new(connection, ATTEMPTS), rows)


def _add_minutes(connection: Connection, streams: Sequence[UsageEvent]) -> None:
    minutes: defaultdict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for stream in streams:
        sums = minutes[stream.tenant, stream.model, stream.started_ms // MINUTE_MS * MINUTE_MS]
        sums[0] += 1
        sums[1] += stream.prompt_tokens
        sums[2] += stream.cached_tokens
        sums[3] += stream.completion_tokens
    if not minutes:
        return
    statement = _insert(connection, MINUTES)
    statement = statement.on_conflict_do_update(
        index_elements=["tenant", "model", "minute_ms"],
        set_={name: MINUTES.c[name] + statement.excluded[name] for name in SUMMED},
    )
    keys = ("tenant", "model", "minute_ms", *SUMMED)
    # In one order everywhere: two writers that lock rows cross-wise would wait for ever.
    rows = [dict(zip(keys, (*k, *s), strict=True)) for k, s in sorted(minutes.items())]
    connection.execute(statement, rows)
