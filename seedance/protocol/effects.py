"""What a session's machine asks of its host; the host carries it out in order."""

from __future__ import annotations

from dataclasses import dataclass

from seedance.protocol.errors import CloseCode
from seedance.protocol.frames import ServerFrame, Usage

__all__ = [
    "CancelUpstream",
    "CloseLink",
    "Effect",
    "Fenced",
    "Finished",
    "Grant",
    "OpenUpstream",
    "RecoverUpstream",
    "Send",
    "SessionOver",
]


# Made once per token; frozen ones cost half a microsecond more.
@dataclass(slots=True)
class Send:
    """Hand a frame to the transport. `seq` None: it is not sequenced.

    A sequenced one is the entry of the log itself (`seedance.protocol.log`), which has its JSON in
    `text`, so that nobody encodes it twice.
    """

    frame: ServerFrame
    seq: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class OpenUpstream:
    """Choose an instance and begin the stream there, with this much credit in tokens."""

    stream: str
    credit: int


@dataclass(frozen=True, slots=True)
class RecoverUpstream:
    """The stream's call broke: attach to it again, or re-open it with its tokens as forced prefix."""

    stream: str
    credit: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Let the engine make this many more tokens."""

    stream: str
    tokens: int


@dataclass(frozen=True, slots=True)
class CancelUpstream:
    """Stop the generation; its blocks are free within one engine step."""

    stream: str


@dataclass(frozen=True, slots=True)
class Finished:
    """No more of this stream's text will be framed: what it costs is known (§4.9).

    `reason` is the finish reason, or the code of the error that ended it.
    """

    stream: str
    reason: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close the connection; the session stays as it is."""

    code: CloseCode
    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """An instance says that a newer owner has the session: let go without touching anything."""


@dataclass(frozen=True, slots=True)
class SessionOver:
    """The session is over: forget it, here and in the store."""


Effect = (
    Send
    | OpenUpstream
    | RecoverUpstream
    | Grant
    | CancelUpstream
    | Finished
    | CloseLink
    | Fenced
    | SessionOver
)
