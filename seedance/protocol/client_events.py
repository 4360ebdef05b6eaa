"""What may happen to a client's session, and what its machine may ask of its host."""

from __future__ import annotations

from dataclasses import dataclass

from seedance.protocol.frames import ClientFrame, Generate, SequencedFrame, ServerFrame

__all__ = [
    "Abort",
    "Connect",
    "Deliver",
    "Dial",
    "Effect",
    "Event",
    "Hangup",
    "Lost",
    "Opened",
    "Reading",
    "Received",
    "Send",
    "Shut",
    "Submit",
    "Tick",
]


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Connect:
    """The user wants a connection, even before there is work."""


@dataclass(frozen=True, slots=True)
class Submit:
    """The user wants a generation; its `id` is set and new."""

    frame: Generate


@dataclass(frozen=True, slots=True)
class Abort:
    """The user wants no more of a generation."""

    id: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The socket that was dialled stands."""


@dataclass(frozen=True, slots=True)
class Received:
    """A frame came in on the socket."""

    frame: ServerFrame
    seq: int | None


@dataclass(frozen=True, slots=True)
class Lost:
    """The socket closed, or the dial failed (1006; 4401 and 4403 for a refused handshake)."""

    close_code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """The user reads a stream so slowly that its buffer is full, or has caught up again."""

    id: str
    behind: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """`deadline()` has come."""


@dataclass(frozen=True, slots=True)
class Shut:
    """The user is done with the session."""


Event = Connect | Submit | Abort | Opened | Received | Lost | Reading | Tick | Shut


# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a socket to `url`; answer with `Opened` or `Lost`."""

    url: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame on the socket."""

    frame: ClientFrame


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close the socket, or give up dialling; nothing of it counts any more, not even `Lost`."""

    close_code: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand a frame of a stream to the user; after `Done` or `ErrorFrame` the stream is over."""

    frame: SequencedFrame


Effect = Dial | Send | Hangup | Deliver
