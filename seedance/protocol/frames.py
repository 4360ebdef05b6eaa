"""One frozen dataclass per WebSocket frame of the contract, §3.

Names are the contract's. A field that may be left out on the wire is None (or its stated default)
here. `SEQUENCED` lists the server frames that take a `seq`; the session gives the number when it
hands a frame to the transport.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seedance.protocol.errors import ErrorCode
from seedance.protocol.request import GenerateRequest

__all__ = [
    "SEQUENCED",
    "Accepted",
    "Ack",
    "Cancel",
    "Checkpoint",
    "ClientFrame",
    "Close",
    "Done",
    "ErrorFrame",
    "Flush",
    "Generate",
    "GoAway",
    "Heartbeat",
    "Ping",
    "Pong",
    "PressureFrame",
    "Resume",
    "Resumed",
    "SequencedFrame",
    "ServerFrame",
    "SessionFrame",
    "Timing",
    "Token",
    "TokenLogprob",
    "Usage",
    "WindowRange",
]


# ---------------------------------------------------------------- client to server


@dataclass(frozen=True, slots=True)
class Generate:
    """Begin a stream. `id` None: the session assigns one. `bare`: it came without `type`."""

    id: str | None
    request: GenerateRequest
    stream: bool = True
    on_disconnect: str | None = None
    receipt: bool = False
    traceparent: str | None = None
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Ack:
    """`seq` is the next number the client expects; `sack` inclusive ranges received above it."""

    seq: int
    sack: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a stream."""

    id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a session on this connection; only as its first message.

    `offsets`: bytes of each stream's text processed, −1 once its end was processed.
    """

    session: str
    token: str
    last_seq: int
    offsets: dict[str, int]


@dataclass(frozen=True, slots=True)
class Ping:
    """Either side may ask; `t` comes back unchanged."""

    t: float | int | None = None


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to `ping`."""

    t: float | int | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """End the session and free everything it holds."""


ClientFrame = Generate | Ack | Cancel | Resume | Ping | Pong | Close


# ---------------------------------------------------------------- server to client


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The three layers' times, in seconds (§2)."""

    connection: float = 30
    session: float = 15
    stream: float = 8


@dataclass(frozen=True, slots=True)
class WindowRange:
    """Frames in flight (§4.3)."""

    initial: int = 32
    min: int = 16
    max: int = 128


@dataclass(frozen=True, slots=True)
class SessionFrame:
    """Sent at once on a new connection; provisional until the first `generate`."""

    session: str
    token: str
    epoch: int
    tenant: str
    mode: str
    server: str
    gateways: tuple[str, ...]
    resume_ttl: float
    heartbeat: Heartbeat = Heartbeat()
    window: WindowRange = WindowRange()


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer to `resume`: `from_seq` is the first sequenced frame that follows."""

    from_seq: int
    session: SessionFrame


@dataclass(frozen=True, slots=True)
class Accepted:
    """The stream was taken by an instance."""

    id: str
    instance: str
    adopted_batch_size: int
    token_quota: int
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's log-probability; `top` holds the likeliest alternatives, best first."""

    token: str
    bytes: tuple[int, ...]
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


# Made once per token; frozen ones cost half a microsecond more.
@dataclass(slots=True)
class Token:
    """A delta of a stream's text. `offset`: bytes of UTF-8 before it. `tokens`: model tokens in it."""

    id: str
    offset: int
    delta: str
    timestamp: int
    tokens: int = 1
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """A hint: the text up to `offset` ends a paragraph or a semantic chunk."""

    id: str
    offset: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What is billed (§4.9): `completion_tokens` were put into frames."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time went, in milliseconds; `ttft_ms` is the sum of the six before it."""

    queue_ms: float = 0.0
    preprocess_ms: float = 0.0
    prefill_ms: float = 0.0
    first_decode_ms: float = 0.0
    cache_sync_ms: float = 0.0
    egress_ms: float = 0.0
    ttft_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """A stream ended well. `text` only with `stream: false`."""

    id: str
    finish_reason: str
    usage: Usage
    timing: Timing
    text: str | None = None
    receipt: dict[str, Any] | None = None
    # With `stream: false` the log-probabilities of the whole text.
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """Something failed. `id` None: it concerns the session. With `usage` it ends its stream."""

    code: ErrorCode
    message: str
    retryable: bool
    id: str | None = None
    retry_after_ms: int | None = None
    usage: Usage | None = None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Every sequenced frame up to `sequence_id` is in the session store (`ack_level` committed)."""

    sequence_id: int
    timestamp: int
    ack_level: str = "committed"


@dataclass(frozen=True, slots=True)
class PressureFrame:
    """`level`: none, throttle, pause."""

    level: str
    reason: str


@dataclass(frozen=True, slots=True)
class GoAway:
    """The process drains: reconnect within `reconnect_ms` and resume elsewhere."""

    reason: str
    reconnect_ms: int


SequencedFrame = Accepted | Token | Flush | Done | ErrorFrame
SEQUENCED = (Accepted, Token, Flush, Done, ErrorFrame)

ServerFrame = (
    SessionFrame | Resumed | SequencedFrame | Checkpoint | PressureFrame | Ping | Pong | GoAway
)
