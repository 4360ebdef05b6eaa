"""The ledger's tables. Rows are written once and never changed."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, String, Table

__all__ = ["METADATA", "REFUSED", "USAGE"]

METADATA = MetaData()

# One row per finished generation. The primary key is what makes the ledger count an event once,
# for ever: there is no time after which an id is forgotten (CASES 100).
USAGE = Table(
    "usage",
    METADATA,
    Column("id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("tenant", String, nullable=False),
    Column("session", String, nullable=False),
    Column("stream", String, nullable=False),
    Column("model", String, nullable=False),
    Column("instance", String, nullable=False),
    Column("finish_reason", String, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger, nullable=False),
    Column("traceparent", String, nullable=False),
)
Index("usage_by_tenant_and_end", USAGE.c.tenant, USAGE.c.ended_ms)

# Entries that were no usage events: kept aside for a person, and out of the way of the others.
# The key is the payload's SHA-256, so that an entry which comes again is kept once.
REFUSED = Table(
    "refused",
    METADATA,
    Column("digest", String, primary_key=True),
    Column("reason", String, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("refused_ms", BigInteger, nullable=False),
)
