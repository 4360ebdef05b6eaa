"""What must hold at every moment of a run; the first breach ends it."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.store.base import SessionWrite, StoredSession
from seedance.protocol.frames import Accepted, Ack, Done, ErrorFrame, Flush, Resume, Resumed, Token

__all__ = ["ConnectionWatch", "Watch", "WatchedLogs"]


@dataclass
class Watch:
    """Breaches so far, and what the promises are judged by.

    `claimed_epochs` is the newest owner of each session by the store's own word, `swept` the
    sessions that nobody came back for, `session_of` where a stream was stored last, and
    `framed` how many tokens of it the store knows to be framed.
    """

    breaches: list[str] = field(default_factory=list)
    trace: list[str] | None = None
    swept: set[str] = field(default_factory=set)
    session_of: dict[str, str] = field(default_factory=dict)
    framed: dict[str, int] = field(default_factory=dict)
    breached: asyncio.Event = field(default_factory=asyncio.Event)
    claimed_epochs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seen_epochs: dict[str, int] = field(default_factory=dict)
    # Whether the store was away: a gateway that goes on from memory cannot know what it has given (§4.6).
    forgets: Callable[[], bool] = lambda: False

    def breach(self, what: str) -> None:
        """A promise was broken."""
        self.breaches.append(f"{asyncio.get_running_loop().time():.4f} {what}")
        self.breached.set()

    def tell(self, what: str) -> None:
        """Something worth reading in a trace happened."""
        if self.trace is not None:
            self.trace.append(f"{asyncio.get_running_loop().time():10.4f} {what}")

    # ------------------------------------------------------------ the store

    def store_took(self, write: SessionWrite) -> None:
        """The store let a write in: its owner must be the newest one."""
        for stream in write.streams:
            self.session_of[stream.id] = write.session
            self.framed[stream.id] = max(stream.framed_tokens, self.framed.get(stream.id, 0))
        newest = self.claimed_epochs[write.session]
        if write.epoch < newest:
            self.breach(f"{write.session}: epoch {write.epoch} wrote after {newest} took over")

    def claimed(self, stored: StoredSession, *, swept: bool = False) -> None:
        """The store gave a session to a new owner."""
        self.tell(f"store: {stored.session} claimed, epoch {stored.epoch}, swept={swept}")
        self.raised(stored.session, stored.epoch)
        if swept:
            self.swept.add(stored.session)

    def raised(self, session: str, epoch: int) -> None:
        """The store has given a session this epoch."""
        self.claimed_epochs[session] = max(epoch, self.claimed_epochs[session])

    def store_lost_data(self) -> None:
        """What it said before does not bind it any more."""
        self.claimed_epochs.clear()

    # ------------------------------------------------------------ the client

    def epoch_seen(self, session: str, epoch: int) -> None:
        """A client's session stands on a connection, under an epoch that is higher each time."""
        if epoch <= self.seen_epochs.get(session, 0) and not self.forgets():
            self.breach(f"{session}: epoch {epoch} after {self.seen_epochs[session]}")
        self.seen_epochs[session] = epoch


class ConnectionWatch:
    """One connection at the gateway: what it may send, by what the client has said on it."""

    def __init__(self, watch: Watch, name: str) -> None:
        self._watch = watch
        self._name = name
        self._acked = self._resumes_at = 1
        self._last = 0
        # Frames in flight that count in the window.
        self._in_flight: set[int] = set()

    def received(self, event: object) -> None:
        """A client's frame is handed on."""
        match event:
            case Ack(seq):
                self._acked = max(self._acked, min(seq, self._last + 1))
            case Resume(last_seq=last_seq):
                self._resumes_at = last_seq + 1
        self._in_flight = {seq for seq in self._in_flight if seq >= self._acked}

    def sent(self, frame: object, seq: int | None, window: int) -> None:
        """A frame is handed to the transport while the window has this size."""
        if isinstance(frame, Resumed):
            # What was sent before was the provisional session's.
            self._acked, self._last = self._resumes_at, self._resumes_at - 1
            if frame.from_seq != self._resumes_at:
                self._watch.breach(f"{self._name}: resumed at {frame.from_seq}")
        if seq is None:
            return
        if seq < self._acked:
            self._watch.breach(f"{self._name}: {seq} was acknowledged and is sent again")
        if seq > self._last + 1:
            self._watch.breach(f"{self._name}: {seq} follows {self._last}")
        fresh = seq == self._last + 1
        self._last = max(self._last, seq)
        match frame:
            case Token() | Flush():
                if fresh and len(self._in_flight) > window:
                    self._watch.breach(f"{self._name}: {seq} is beyond a window of {window}")
                self._in_flight.add(seq)
            case Accepted() | Done() | ErrorFrame():
                pass  # they do not wait for the window (§4.3)


class WatchedLogs(logging.Handler):
    """An error in a log is a breach: nothing that the simulation does to a service may cause one."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.ERROR)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
            self._watch.tell(logging.Formatter().formatException(record.exc_info))
        self._watch.breach(f"logged: {text}")
