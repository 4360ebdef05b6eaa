"""The ledger's tables. What was recorded is never changed: a correction is a new row.

Each row of an event has the `position` of the transaction that wrote it. Positions are given in the
order of the commits, so that "the ledger at position p" is one state for ever, whatever comes later.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

__all__ = [
    "ATTEMPTS",
    "CONNECTIONS",
    "CORRECTIONS",
    "INVOICES",
    "JOURNAL",
    "METADATA",
    "MINUTES",
    "OPENINGS",
    "PLAN_TEXTS",
    "REFUSED",
    "REQUESTS",
    "USAGE",
    "USAGE_BY_START",
]

METADATA = MetaData()


def _position() -> Column[int]:
    # Rows that are older than positions belong to every state.
    return Column("position", BigInteger, nullable=False, server_default="0")


# One row per finished generation. The primary key is what makes the ledger count an event once,
# for ever: there is no time after which an id is forgotten (CASES 100).
USAGE = Table(
    "usage",
    METADATA,
    Column("id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("tenant", String, nullable=False),
    Column("key", String, nullable=False, server_default=""),
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
    # The same tokens in other books (`metering.conservation`); NULL: nobody told.
    Column("computed_tokens", BigInteger),
    Column("discarded_tokens", BigInteger),
    Column("acknowledged_tokens", BigInteger),
    Column("retained_tokens", BigInteger),
    _position(),
)
# A generation belongs to the day, the month and the prices of the moment at which it began.
USAGE_BY_START = Index("usage_by_tenant_and_start", USAGE.c.tenant, USAGE.c.started_ms)

# Who made the tokens of a generation that more than one instance worked on (CASES 86).
ATTEMPTS = Table(
    "attempts",
    METADATA,
    Column("id", String, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("model", String, nullable=False),
    Column("instance", String, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
)

# Connections that have begun. Nothing is billed of it: a connection without a row in the next table
# is open, or its gateway died and nobody has ended it yet.
OPENINGS = Table(
    "openings",
    METADATA,
    Column("id", String, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("gateway", String, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("mode", String, nullable=False),
    _position(),
)

# `ended_ms`: the end of CLOSE_WAIT. `rtt_us_sum` over `rtt_samples` is the average.
CONNECTIONS = Table(
    "connections",
    METADATA,
    Column("id", String, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("gateway", String, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger, nullable=False),
    Column("time_wait_ms", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("rtt_us_sum", BigInteger, nullable=False),
    Column("rtt_samples", BigInteger, nullable=False),
    _position(),
)
Index("connections_by_tenant_and_end", CONNECTIONS.c.tenant, CONNECTIONS.c.ended_ms)

# `counted_as` is the idempotency id, or the event's own: resends of a request count once (CASES 102).
REQUESTS = Table(
    "requests",
    METADATA,
    Column("id", String, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("outcome", String, nullable=False),
    Column("counted_as", String, nullable=False),
    _position(),
    UniqueConstraint("tenant", "counted_as"),
)
Index("requests_by_tenant_and_moment", REQUESTS.c.tenant, REQUESTS.c.at_ms)

# Sums per minute in which generations began: made beside the events, and again out of them.
MINUTES = Table(
    "minutes",
    METADATA,
    Column("tenant", String, primary_key=True),
    Column("model", String, primary_key=True),
    Column("minute_ms", BigInteger, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
)

# Money given or taken by hand, rounded once, here: a balance is the sum of its entries (CASES 93).
CORRECTIONS = Table(
    "corrections",
    METADATA,
    Column("id", String, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("amount", String, nullable=False),
    Column("reason", String, nullable=False),
    _position(),
)
Index("corrections_by_tenant_and_moment", CORRECTIONS.c.tenant, CORRECTIONS.c.at_ms)

# Closed invoices: the ledger's position and the plan file that each can be made from again, and the
# document as it was sent.
INVOICES = Table(
    "invoices",
    METADATA,
    Column("tenant", String, primary_key=True),
    Column("month", String, primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("plan_digest", String, nullable=False),
    Column("closed_ms", BigInteger, nullable=False),
    Column("document", LargeBinary, nullable=False),
)

PLAN_TEXTS = Table(
    "plan_texts",
    METADATA,
    Column("digest", String, primary_key=True),
    Column("text", LargeBinary, nullable=False),
)

# One row: the position of the newest transaction. Taking a position locks it until the commit.
JOURNAL = Table(
    "journal",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
)

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
