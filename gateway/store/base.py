"""The session store: what outlives a gateway (the design, "who remembers what").

One pipelined `commit` per gateway carries all sessions' new entries. Every write names the epoch
of the session's owner and is refused by the store when a newer owner exists (fencing): that check
and the write are one atomic step. Time-to-live is judged by the store's clock alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = [
    "ENDS_KEPT_MAX",
    "KEEP_S",
    "OWNER_RENEW_S",
    "OWNER_SILENCE_S",
    "SWEEP_RETRY_S",
    "CommitResult",
    "GatewayLease",
    "LogEntry",
    "OvertakenError",
    "SessionOverError",
    "SessionStore",
    "SessionWrite",
    "StoreLateError",
    "StoreUnavailableError",
    "StoredSession",
    "StoredStream",
    "StreamWrite",
    "UsageEvent",
    "UsageMarks",
]


# Each write renews a session's life, also one that has nothing new: an owner writes at least this
# often for every session with live streams, or it is taken for dead.
OWNER_RENEW_S = 20.0
# A session whose owner fell silent without saying `detached` (it was killed) is swept when it could
# not be resumed any more: `resume_ttl` and this much after its latest write.
OWNER_SILENCE_S = 30.0
# What the store has of a session outlives `resume_ttl` by this much, so that somebody can sweep it.
KEEP_S = 60.0
# A swept session that nobody closes (its sweeper died) is offered again after this time.
SWEEP_RETRY_S = 10.0
# Ends that a session's streams leave behind: as many as ids are remembered (§3).
ENDS_KEPT_MAX = 1024


class StoreUnavailableError(Exception):
    """The store cannot be reached, or is back too recently to be believed."""


class SessionOverError(Exception):
    """The session is known to be over: it was closed, or swept when its time was up."""


class OvertakenError(Exception):
    """Another owner has gone on with the session after what this gateway remembers of it."""


class StoreLateError(StoreUnavailableError):
    """This process was too busy to look for the answer in time: no word about the store."""


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """One event on its way to metering; `payload` is its JSON. The ledger takes each id once."""

    id: str
    payload: bytes


# The parts of a write are not frozen: some are made for every commit of every session, and to set the
# fields of a frozen one costs several times as much.
@dataclass(slots=True)
class LogEntry:
    """One sequenced frame, encoded as JSON text of the contract with its `seq`."""

    seq: int
    frame: bytes


@dataclass(slots=True)
class StreamWrite:
    """What is new about one stream.

    `opened` is the stream's constant part (request, seed, options) as JSON, given once; `instance`
    when it changed; `token_ids` are appended; `framed` holds the counters of what was put into
    frames so far (bytes and tokens), as they are now; `ended` is the JSON of its end, and lets the
    store drop everything else of the stream. `text_state`: the hash of the framed text so far, of a
    stream that wants a receipt.
    """

    id: str
    opened: bytes | None = None
    instance: str | None = None
    token_ids: tuple[int, ...] = ()
    framed_bytes: int = 0
    framed_tokens: int = 0
    ended: bytes | None = None
    text_state: bytes = b""


@dataclass(slots=True)
class SessionWrite:
    """What is new about one session since its last commit.

    `created` is the session's constant part (tenant, mode, token hash) as JSON, given in its first
    commit and again when everything is written anew. `acked` lets the store drop log entries below
    it (the next number the client expects). `rewrite`: replace whatever is there: the owner's
    memory is the truth (the store was away or was emptied). `detached`: no connection; the
    session's deadline is set `resume_ttl` from now, by the store's clock. `bills` go to metering if,
    and only if, the rest is written: what a stream costs and that it has ended are one word.
    """

    session: str
    epoch: int
    created: bytes | None = None
    entries: tuple[LogEntry, ...] = ()
    acked: int = 0
    streams: tuple[StreamWrite, ...] = ()
    rewrite: bool = False
    detached: bool = False
    closed: bool = False
    bills: tuple[UsageEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What was refused.

    `fenced`: a newer owner exists, or another gateway with the same epoch, or the session is over. `missing`: the store does not have the
    session that the write would add to (it lost its data): write it anew with `rewrite`.
    `failed`: the store cannot carry out this session's write, and may have begun to; so, too.
    """

    fenced: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stream as the store has it; `ended` set: only its end is kept."""

    id: str
    opened: bytes
    instance: str
    token_ids: tuple[int, ...]
    framed_bytes: int
    framed_tokens: int
    ended: bytes | None = None
    text_state: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as the store has it, after this owner's claim: `epoch` is already the new one.

    `former`: the gateway that owned it before; empty: the store was not told. `since`: the epoch with
    which that one came to own it. What it remembers from that epoch on is all there is; from an earlier
    one it lacks what others did in between.
    """

    session: str
    epoch: int
    created: bytes
    last_seq: int
    acked: int
    entries: tuple[LogEntry, ...]
    streams: dict[str, StoredStream] = field(default_factory=dict)
    former: str = ""
    since: int = 0


@dataclass(frozen=True, slots=True)
class GatewayLease:
    """A gateway's word that it lives, and what is new of its connections (`mesh.store.lease_key`).

    `beat_ms` is its monotonic clock; `connections` are records by name; `gone` ended in good order.
    `heir_of` are dead gateways whose events it tells.
    """

    gateway: str
    beat_ms: int
    connections: dict[str, bytes] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    heir_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UsageMarks:
    """What metering and the usage stream say to a gateway.

    `committed`: ids of its events that the ledger has and that it was not told of; `complete`: all
    of them. `oldest_waiting_s`: age of the oldest entry of the stream that is not in the ledger (0:
    none waits), `waiting`: how many. `lease_was_gone`: the store did not have this gateway's lease.
    """

    committed: frozenset[str] = frozenset()
    complete: bool = True
    oldest_waiting_s: float = 0.0
    waiting: int = 0
    lease_was_gone: bool = False


class SessionStore(Protocol):
    """Both implementations pass one contract suite. Every method may raise `StoreUnavailableError`.

    `gateway` is the start id of the one that calls. Two may come to have one epoch, when one of them
    raised it while the store was away; the store then keeps the one that it heard of first.
    """

    async def commit(self, writes: Sequence[SessionWrite], gateway: str = "") -> CommitResult:
        """Write all, in few round trips; each session's part is atomic and fenced by its epoch."""
        ...

    async def claim(
        self,
        session: str,
        token_hash: str,
        gateway: str = "",
        *,
        above: int = 0,
        bars: bool = False,
    ) -> StoredSession | None:
        """Become the owner: raise the epoch by one and return the session; None: surely not there.

        The epoch is `above` this one in any case. Raises `SessionOverError`.
        One that the store lacks is not known to be gone, while its first commit may be on its way: then this raises
        `StoreUnavailableError` (§4.8). `bars`: should that commit come later still, it is refused, so that
        what a client was told is true. Raises `PermissionError` when the token's hash is not the one in `created`
        (field `token_hash` of its JSON).
        """
        ...

    async def raise_epoch(self, session: str, above: int, gateway: str) -> int | None:
        """Become the owner of a session that this gateway has, whether the store is believed or not.

        The new epoch, `above` this one, with which it knows the session; None: the store has no such session.
        Raises `SessionOverError`, and `OvertakenError` when others owned it after that epoch.
        """
        ...

    async def sweep(self, limit: int, gateway: str = "") -> list[StoredSession]:
        """Claim up to `limit` sessions whose deadline has passed: cancel and bill their streams.

        The caller closes each when that is done (`SessionWrite.closed`); who does not within `SWEEP_RETRY_S` leaves it to
        the next sweep. A swept session cannot be resumed any more.
        """
        ...

    async def add_usage(self, events: Sequence[UsageEvent]) -> None:
        """Append to the usage stream that metering consumes."""
        ...

    async def meet_metering(self, lease: GatewayLease) -> UsageMarks:
        """Renew a gateway's lease, and take what metering has committed of its events."""
        ...

    async def put_ticket(self, ticket: str, value: bytes, ttl_s: float) -> None:
        """Keep a single-use ticket."""
        ...

    async def take_ticket(self, ticket: str) -> bytes | None:
        """The ticket's value, once; None: unknown, used or expired."""
        ...

    async def note(self, name: str, value: bytes, ttl_s: float) -> bytes:
        """Keep a value under a name that has none; what stands there then, this one or an older."""
        ...

    async def put_note(self, name: str, value: bytes, ttl_s: float) -> None:
        """Keep a value, whatever stood there."""
        ...

    async def find_note(self, name: str) -> bytes | None:
        """What stands there; None: nothing, or not any more."""
        ...

    async def drop_note(self, name: str) -> None:
        """Forget what stands there."""
        ...

    async def generation_mark(self) -> str:
        """A mark that changes when the store may have lost data.

        It names the data (made when absent) and the server's process: one that was started again may
        be back with older data that bears the same mark.
        """
        ...

    def now_ms(self) -> int:
        """The store's clock as last heard, in Unix milliseconds: the one clock of all gateways."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...
