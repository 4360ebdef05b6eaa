"""The session store inside one process: for tests, simulation, and a mesh without Redis."""

from __future__ import annotations

import hmac
import json
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway.store.base import (
    ENDS_KEPT_MAX,
    KEEP_S,
    OWNER_SILENCE_S,
    SWEEP_RETRY_S,
    CommitResult,
    GatewayLease,
    LogEntry,
    OvertakenError,
    SessionOverError,
    SessionWrite,
    StoredSession,
    StoredStream,
    StreamWrite,
    UsageEvent,
    UsageMarks,
)
from gateway.store.names import SESSION_ID
from mesh.clock import Clock

__all__ = ["MemoryStore"]

# Nobody reads the usage stream of a mesh without Redis: keep the newest for whoever looks.
USAGE_KEPT_MAX = 10_000
TICKETS_MAX = 10_000
BARRED_KEPT_MAX = 10_000
NOTES_MAX = 1_000


@dataclass(slots=True)
class _Session:
    epoch: int
    gateway: str = ""
    since: int = 0
    created: bytes = b""
    last_seq: int = 0
    acked: int = 0
    log: list[LogEntry] = field(default_factory=list)
    live: dict[str, StoredStream] = field(default_factory=dict)
    ends: dict[str, StoredStream] = field(default_factory=dict)
    deadline: float = 0.0
    expires_at: float = 0.0
    gone: bool = False
    swept: bool = False

    def is_of_another(self, epoch: int, gateway: str) -> bool:
        if self.epoch == epoch:
            return self.gateway not in ("", gateway)
        return self.epoch > epoch

    def has_overtaken(self, epoch: int, gateway: str) -> bool:
        if self.gateway == gateway:
            return self.since > epoch
        return self.is_of_another(epoch, gateway)

    def owned_by(self, gateway: str, epoch: int, since: int) -> None:
        if self.gateway != gateway:
            self.gateway, self.since = gateway, since
        self.epoch = epoch

    def check_alive(self) -> None:
        if self.gone or self.swept:
            raise SessionOverError

    def write_stream(self, write: StreamWrite) -> None:
        known = self.live.get(write.id, StoredStream(write.id, b"", "", (), 0, 0))
        if write.ended is None:
            self.live[write.id] = replace(
                known,
                opened=write.opened or known.opened,
                instance=write.instance or known.instance,
                token_ids=known.token_ids + write.token_ids,
                framed_bytes=write.framed_bytes,
                framed_tokens=write.framed_tokens,
                text_state=write.text_state,
            )
            return
        self.live.pop(write.id, None)
        self.ends[write.id] = StoredStream(write.id, b"", "", (), 0, 0, write.ended)
        while len(self.ends) > ENDS_KEPT_MAX:
            del self.ends[next(iter(self.ends))]

    def write_log(self, write: SessionWrite) -> None:
        fresh = [e for e in write.entries if e.seq > self.last_seq]
        self.log = [e for e in (*self.log, *fresh) if e.seq >= write.acked]
        self.last_seq = max([self.last_seq, write.acked - 1, *(e.seq for e in write.entries)])
        self.acked = write.acked


class MemoryStore:
    """`SessionStore` by the given clock. Gateways of one test share one object.

    `usage` holds the newest usage events, oldest first.
    """

    def __init__(self, clock: Clock, resume_ttl_s: float) -> None:
        self._clock = clock
        self._resume_ttl_s = resume_ttl_s
        self._sessions: dict[str, _Session] = {}
        self._barred: dict[tuple[str, str], None] = {}
        self._tickets: dict[str, tuple[bytes, float]] = {}
        self._notes: dict[str, tuple[bytes, float]] = {}
        self._mark = secrets.token_hex(8)
        self.usage: deque[UsageEvent] = deque(maxlen=USAGE_KEPT_MAX)
        self.leases: dict[str, GatewayLease] = {}

    async def commit(self, writes: Sequence[SessionWrite], gateway: str = "") -> CommitResult:
        """Write all; see the base."""
        refused: dict[str, set[str]] = {"fenced": set(), "missing": set()}
        for write in writes:
            refusal = self._commit_one(write, gateway)
            if refusal:
                refused[refusal].add(write.session)
        return CommitResult(frozenset(refused["fenced"]), frozenset(refused["missing"]))

    def _commit_one(self, write: SessionWrite, gateway: str) -> str:
        stored = self._find(write.session)
        if stored is not None and (stored.gone or stored.is_of_another(write.epoch, gateway)):
            return "fenced"
        if stored is None and write.created is not None:
            token_hash = json.loads(write.created)["token_hash"]
            if (write.session, token_hash) in self._barred:
                return "fenced"
        lacking = stored is None and write.created is None and not write.rewrite
        if lacking and not write.closed:
            return "missing"
        self.usage.extend(write.bills)
        if write.closed:
            self._sessions[write.session] = _Session(write.epoch, gone=True)
        elif stored is None or write.rewrite:
            self._sessions[write.session] = _Session(write.epoch, since=write.epoch)
        session = self._sessions[write.session]
        session.expires_at = self._clock.monotonic() + self._resume_ttl_s + KEEP_S
        if write.closed:
            return ""
        session.owned_by(gateway, write.epoch, since=write.epoch)
        session.created = write.created or session.created
        session.write_log(write)
        for stream in write.streams:
            session.write_stream(stream)
        self._set_deadline(session, 0.0 if write.detached else OWNER_SILENCE_S)
        return ""

    async def claim(
        self,
        session: str,
        token_hash: str,
        gateway: str = "",
        *,
        above: int = 0,
        bars: bool = False,
    ) -> StoredSession | None:
        """Become the owner; see the base."""
        stored = self._find(session)
        if stored is None and bars:
            self._barred[session, token_hash] = None
            while len(self._barred) > BARRED_KEPT_MAX:
                del self._barred[next(iter(self._barred))]
        if stored is None:
            return None
        stored.check_alive()
        known_hash = json.loads(stored.created)["token_hash"]
        if not hmac.compare_digest(known_hash.encode(), token_hash.encode()):
            raise PermissionError
        self._set_deadline(stored, OWNER_SILENCE_S)
        return self._claimed(session, stored, gateway, above)

    async def raise_epoch(self, session: str, above: int, gateway: str) -> int | None:
        """Become the owner of a session that is known; see the base."""
        stored = self._find(session)
        if stored is None:
            return None
        stored.check_alive()
        if stored.has_overtaken(above, gateway):
            raise OvertakenError
        stored.owned_by(gateway, max(stored.epoch, above) + 1, since=above)
        return stored.epoch

    async def sweep(self, limit: int, gateway: str = "") -> list[StoredSession]:
        """Claim sessions past their deadline; see the base."""
        now = self._clock.monotonic()
        for name in [n for n, s in self._sessions.items() if s.expires_at <= now]:
            del self._sessions[name]
        due = [
            (name, stored)
            for name, stored in self._sessions.items()
            if not stored.gone and stored.deadline <= now
        ]
        for _, stored in due[:limit]:
            stored.swept = True
            stored.deadline = now + SWEEP_RETRY_S
        return [self._claimed(name, stored, gateway, 0) for name, stored in due[:limit]]

    async def add_usage(self, events: Sequence[UsageEvent]) -> None:
        """Keep usage events; see the base."""
        self.usage.extend(events)

    async def meet_metering(self, lease: GatewayLease) -> UsageMarks:
        """What is kept here is as good as committed: there is no ledger. See the base."""
        self.leases[lease.gateway] = lease
        return UsageMarks(frozenset(event.id for event in self.usage))

    async def put_ticket(self, ticket: str, value: bytes, ttl_s: float) -> None:
        """Keep a ticket; see the base."""
        while len(self._tickets) >= TICKETS_MAX:
            del self._tickets[next(iter(self._tickets))]
        self._tickets[ticket] = (value, self._clock.monotonic() + ttl_s)

    async def take_ticket(self, ticket: str) -> bytes | None:
        """Use a ticket; see the base."""
        value, expires_at = self._tickets.pop(ticket, (None, 0.0))
        return value if self._clock.monotonic() < expires_at else None

    async def note(self, name: str, value: bytes, ttl_s: float) -> bytes:
        """Keep a value unless there is one; see the base."""
        found = await self.find_note(name)
        if found is None:
            await self.put_note(name, value, ttl_s)
        return value if found is None else found

    async def put_note(self, name: str, value: bytes, ttl_s: float) -> None:
        """Keep a value; see the base."""
        self._notes.pop(name, None)
        while len(self._notes) >= NOTES_MAX:
            del self._notes[next(iter(self._notes))]
        self._notes[name] = (value, self._clock.monotonic() + ttl_s)

    async def find_note(self, name: str) -> bytes | None:
        """What stands there; see the base."""
        value, expires_at = self._notes.get(name, (None, 0.0))
        return value if self._clock.monotonic() < expires_at else None

    async def drop_note(self, name: str) -> None:
        """Forget; see the base."""
        self._notes.pop(name, None)

    async def generation_mark(self) -> str:
        """Changes with each object; see the base."""
        return self._mark

    def now_ms(self) -> int:
        """The host's clock; see the base."""
        return self._clock.wall_ms()

    async def close(self) -> None:
        """Nothing is held."""

    def _find(self, session: str) -> _Session | None:
        stored = self._sessions.get(session) if SESSION_ID.fullmatch(session) else None
        return None if stored is None or stored.expires_at <= self._clock.monotonic() else stored

    def _set_deadline(self, session: _Session, slack_s: float) -> None:
        session.deadline = self._clock.monotonic() + self._resume_ttl_s + slack_s

    def _claimed(self, name: str, session: _Session, gateway: str, above: int) -> StoredSession:
        former, since, epoch = session.gateway, session.since, max(session.epoch, above) + 1
        session.owned_by(gateway, epoch, since=epoch)
        session.expires_at = self._clock.monotonic() + self._resume_ttl_s + KEEP_S
        return StoredSession(
            session=name,
            epoch=session.epoch,
            created=session.created,
            last_seq=session.last_seq,
            acked=session.acked,
            entries=tuple(session.log),
            streams={**session.ends, **session.live},
            former=former,
            since=since,
        )
