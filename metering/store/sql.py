"""The ledger in SQL, synchronous: SQLite in a file by default, PostgreSQL by its URL.

Called from the ledger's own thread, never on an event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Engine, Insert, Table, create_engine, event, func, select
from sqlalchemy.dialects import postgresql, sqlite

from metering.event import UsageEvent
from metering.store.tables import METADATA, REFUSED, USAGE

__all__ = ["ModelSum", "RefusedEntry", "SqlStore"]

# How long a writer waits for another one (a person's sqlite3 shell, say) before it gives up.
SQLITE_BUSY_MS = 5_000
_BIGINT_MAX = 2**63 - 1


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


class SqlStore:
    """Tables behind a SQLAlchemy URL; they are made when they are not there.

    Methods raise `sqlalchemy.exc.SQLAlchemyError` when the database does not answer.
    """

    def __init__(self, url: str) -> None:
        self._engine = _open_engine(url)
        METADATA.create_all(self._engine)

    def write(
        self, events: Sequence[UsageEvent], refused: Sequence[RefusedEntry]
    ) -> frozenset[str]:
        """Write all in one transaction; returns the ids that were new."""
        with self._engine.begin() as connection:
            if refused:
                rows = [{f: getattr(r, f) for f in r.__slots__} for r in refused]
                connection.execute(self._insert_new(REFUSED, rows))
            if not events:
                return frozenset()
            rows = [_row(e) for e in events]
            statement = self._insert_new(USAGE, rows).returning(USAGE.c.id)
            return frozenset(connection.execute(statement).scalars())

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
        with self._engine.connect() as connection:
            # PostgreSQL sums BIGINT into NUMERIC.
            return [
                ModelSum(model, *(int(s) for s in sums))
                for model, *sums in connection.execute(query)
            ]

    def refused(self, limit: int) -> list[RefusedEntry]:
        """The newest refused entries, for a person to look at."""
        query = select(REFUSED).order_by(REFUSED.c.refused_ms.desc()).limit(limit)
        with self._engine.connect() as connection:
            return [RefusedEntry(**row) for row in connection.execute(query).mappings()]

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def _insert_new(self, table: Table, rows: list[dict[str, Any]]) -> Insert:
        if self._engine.dialect.name == "postgresql":
            return postgresql.insert(table).values(rows).on_conflict_do_nothing()
        return sqlite.insert(table).values(rows).on_conflict_do_nothing()


def _row(event: UsageEvent) -> dict[str, Any]:
    row = msgspec.structs.asdict(event)
    del row["v"]
    return row


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
