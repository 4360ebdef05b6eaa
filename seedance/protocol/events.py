"""What happens to a session on the server's side: the inputs of its machine, beside client frames.

The first group is what an instance says about one stream; the second is what the host sees of
connection, store and time.
"""

from __future__ import annotations

from dataclasses import dataclass

from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import ClientFrame, Resume, SessionFrame, Timing, TokenLogprob, Usage
from seedance.protocol.pressure import PressureLevel

__all__ = [
    "Expired",
    "FromInstance",
    "InstanceEvent",
    "LinkDown",
    "LinkUp",
    "LinkWritable",
    "Pump",
    "Refused",
    "ResumeOn",
    "SessionEvent",
    "StoreLevel",
    "Stored",
    "Tick",
    "UpstreamAccepted",
    "UpstreamBroken",
    "UpstreamDone",
    "UpstreamFailed",
    "UpstreamPressure",
    "UpstreamTokens",
]


@dataclass(frozen=True, slots=True)
class UpstreamAccepted:
    """The instance has taken the stream. `from_token`: index of the first token that follows."""

    instance: str
    model: str
    adopted_batch_size: int
    token_quota: int
    prompt_tokens: int
    from_token: int


# Made once per token; frozen ones cost half a microsecond more.
@dataclass(slots=True)
class UpstreamTokens:
    """One step's tokens of one stream.

    `offset`: bytes of the generation's text before `text`; `token_index`: index of the first id in
    the generation. `text` may be empty while ids are not (a stop string or code point is still
    open), and never ends inside a code point. `lengths`, given with entries of several tokens (merged
    or replayed), is how many bytes of `text` each token released: by it they count like single ones.
    """

    token_ids: tuple[int, ...]
    token_index: int
    text: bytes
    offset: int
    timestamp_ms: int
    logprobs: tuple[TokenLogprob, ...] = ()
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UpstreamDone:
    """It ended well: `stop`, `length` or `cancelled`."""

    finish_reason: str
    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True)
class UpstreamFailed:
    """The instance refused or failed it, or no instance could be found for it."""

    error: SeedanceError
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class UpstreamBroken:
    """The call broke: the instance may be gone."""


@dataclass(frozen=True, slots=True)
class UpstreamPressure:
    """The instance asks its callers for less, or no longer; `reason` is for a person."""

    level: PressureLevel
    reason: str


InstanceEvent = (
    UpstreamAccepted
    | UpstreamTokens
    | UpstreamDone
    | UpstreamFailed
    | UpstreamBroken
    | UpstreamPressure
)


@dataclass(frozen=True, slots=True)
class FromInstance:
    """An instance says something about a stream."""

    stream: str
    what: InstanceEvent


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A connection carries the session from now on; `hello` is sent on it at once."""

    hello: SessionFrame
    windowed: bool


@dataclass(frozen=True, slots=True)
class ResumeOn:
    """A connection takes the session over with `resume`; `hello` holds the raised epoch."""

    resume: Resume
    hello: SessionFrame
    windowed: bool


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection ended, in whatever way."""


@dataclass(frozen=True, slots=True)
class LinkWritable:
    """The transport takes bytes again (True), or its buffer is full (False)."""

    writable: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A client frame could not be read; the session goes on (§3)."""

    error: SeedanceError
    stream: str | None = None


@dataclass(frozen=True, slots=True)
class StoreLevel:
    """Whether the session store is reachable (`ack_level`, §3); `wall_ms` is the host's clock."""

    committed: bool
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Every frame up to `seq` and the openings of `streams` are in the store."""

    seq: int
    wall_ms: int
    streams: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pump:
    """A turn of the event loop is over: what has gathered may go into frames."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. `idle`: the transport's buffer is empty.

    `piece_at`: when a piece of a message arrived that has not arrived in full; None: never.
    """

    idle: bool = True
    piece_at: float | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """The session has been without a connection for too long, or has to end."""


SessionEvent = (
    ClientFrame
    | FromInstance
    | LinkUp
    | ResumeOn
    | LinkDown
    | LinkWritable
    | Refused
    | StoreLevel
    | Stored
    | Pump
    | Tick
    | Expired
)
