"""One WebSocket on the server's side (§2, §3): what a message is, and whether anybody is there.

    FIRST ──any frame──► OPEN ──fault, silence──► CLOSED
      └──resume──► RESUMING ──host has the session──► OPEN

`resume` is meant only as the first message; later ones reach the session, which refuses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from seedance.protocol.errors import CloseCode, ProtocolFault, SeedanceError
from seedance.protocol.events import Refused, SessionEvent
from seedance.protocol.frames import ClientFrame, Resume
from seedance.protocol.silence import Silence, Verdict

__all__ = [
    "ANSWER_WITHIN_S",
    "CloseSocket",
    "ConnectionEffect",
    "ConnectionMachine",
    "ConnectionState",
    "Deliver",
    "PingPeer",
    "TakeOver",
]

# After the server's ping anything at all has to arrive within this (§2).
ANSWER_WITHIN_S = 15.0


class ConnectionState(Enum):
    """Where a connection is."""

    FIRST = "first"
    RESUMING = "resuming"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give this to the session."""

    event: SessionEvent


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Find the session that the client names and give it this connection."""

    resume: Resume


@dataclass(frozen=True, slots=True)
class PingPeer:
    """Send a WebSocket ping with empty payload."""


@dataclass(frozen=True, slots=True)
class CloseSocket:
    """Close the WebSocket."""

    code: CloseCode
    reason: str


ConnectionEffect = Deliver | TakeOver | PingPeer | CloseSocket


class ConnectionMachine:
    """Takes frames and minds the connection's own heartbeat of `heartbeat_s`."""

    def __init__(self, heartbeat_s: float, now: float) -> None:
        self.state = ConnectionState.FIRST
        self._silence = Silence(heartbeat_s, heartbeat_s + ANSWER_WITHIN_S, now)

    def frame(self, heard: ClientFrame | SeedanceError) -> list[ConnectionEffect]:
        """A frame arrived, or one that is wrong by itself: the session answers that."""
        if self.state is ConnectionState.CLOSED:
            return []
        if isinstance(heard, Resume) and self.state is ConnectionState.FIRST:
            self.state = ConnectionState.RESUMING
            return [TakeOver(heard)]
        self.state = ConnectionState.OPEN
        if isinstance(heard, SeedanceError):
            return [Deliver(Refused(heard, heard.stream_id))]
        return [Deliver(heard)]

    def fault(self, fault: ProtocolFault) -> list[ConnectionEffect]:
        """What arrived holds no frame, or is a message of the wrong kind."""
        if self.state is ConnectionState.CLOSED:
            return []
        return self._close(fault.close_code, fault.message)

    def closed(self) -> None:
        """The WebSocket is gone."""
        self.state = ConnectionState.CLOSED

    def heard(self, at: float) -> None:
        """Bytes of any kind arrived then."""
        self._silence.heard(at)

    def tick(self, now: float) -> list[ConnectionEffect]:
        """Time passed."""
        if self.state is ConnectionState.CLOSED:
            return []
        match self._silence.check(now):
            case Verdict.ASK:
                return [PingPeer()]
            case Verdict.GONE:
                return self._close(CloseCode.TIMEOUT, "connection timeout")
            case Verdict.FINE:
                return []

    @property
    def deadline(self) -> float:
        """When to `tick` next; infinity: never again."""
        over = self.state is ConnectionState.CLOSED
        return float("inf") if over else self._silence.deadline

    def _close(self, code: CloseCode, reason: str) -> list[ConnectionEffect]:
        self.state = ConnectionState.CLOSED
        return [CloseSocket(code, reason)]
