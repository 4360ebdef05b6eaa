"""What the engine is told and what it answers, in the domain's own types.

A *call* is one way in (a gRPC call); a *stream* is one generation's place in a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from inference.engine.answer import FinishReason, Piece
from inference.engine.runner import Prepared
from inference.engine.timing import Marks
from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import Usage
from seedance.protocol.request import GenerateRequest

__all__ = [
    "Accepted",
    "Attach",
    "CallEnded",
    "CallOutput",
    "Cancel",
    "Command",
    "Credit",
    "Done",
    "EndRecord",
    "Failed",
    "Hold",
    "Open",
    "Pressure",
    "PressureLevel",
    "Release",
    "StepOutput",
    "StreamKey",
    "Tokens",
    "TurnAway",
]


class StreamKey(NamedTuple):
    """One generation's place in a call."""

    call: int
    stream: int


# ---- commands


@dataclass(frozen=True, slots=True)
class Open:
    """Begin a generation, or continue one from a forced prefix.

    `generation` is its name across calls. `lasting`: it outlives its call (a gateway's); else the
    end of the call cancels it. `credit` None: unlimited. `weight` is the tenant's share; 0: this
    instance's own settings say it.
    """

    stream: StreamKey
    generation: str
    request: GenerateRequest
    prepared: Prepared
    marks: Marks
    epoch: int = 0
    tenant: str = "direct"
    weight: float = 0.0
    forced_ids: tuple[int, ...] = ()
    credit: int | None = None
    traceparent: str = ""
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Attach:
    """Take over a generation from token `from_token` on."""

    stream: StreamKey
    generation: str
    epoch: int
    from_token: int
    credit: int | None = None


@dataclass(frozen=True, slots=True)
class Credit:
    """So many more tokens may be sent."""

    stream: StreamKey
    tokens: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the generation."""

    stream: StreamKey


@dataclass(frozen=True, slots=True)
class Release:
    """The generation's end is safe elsewhere: it may be forgotten."""

    stream: StreamKey


@dataclass(frozen=True, slots=True)
class TurnAway:
    """Refuse a request that waited at the door: more wait already than may."""

    stream: StreamKey


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is over, or broke."""

    call: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The call's other end lags (`on`), or has caught up: its streams pause meanwhile."""

    call: int
    on: bool


Command = Open | Attach | Credit | Cancel | Release | TurnAway | CallEnded | Hold


# ---- outputs


@dataclass(frozen=True, slots=True)
class Accepted:
    """The generation was taken; `from_token` is the index of the first token that follows."""

    stream: StreamKey
    adopted_batch_size: int
    token_quota: int
    prompt_tokens: int
    from_token: int


@dataclass(slots=True)
class Tokens:
    """What a stream has new; `marks` take the time when its first token leaves.

    `token_bytes` spells the ids of log-probabilities; None when none were asked.
    """

    stream: StreamKey
    piece: Piece
    marks: Marks
    token_bytes: Callable[[int], bytes] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The generation ended well."""

    stream: StreamKey
    reason: FinishReason
    usage: Usage
    marks: Marks


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation ended badly; without `usage`, an instruction was refused.

    `final` false: the stream goes on as if the instruction had not come.
    """

    stream: StreamKey
    error: SeedanceError
    usage: Usage | None = None
    final: bool = True


class PressureLevel(Enum):
    """How much less the engine asks for."""

    NONE = "none"
    THROTTLE = "throttle"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Pressure:
    """The engine asks every caller for less, or no longer does."""

    level: PressureLevel
    reason: str
    queue_depth: int
    free_blocks: int


@dataclass(slots=True)
class CallOutput:
    """What one call has new: a receiver applies `accepted`, then `tokens`, then `ends`."""

    accepted: list[Accepted] = field(default_factory=list)
    tokens: list[Tokens] = field(default_factory=list)
    ends: list[Done | Failed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EndRecord:
    """A generation that has ended, for traces and metrics. `error` None: it ended well."""

    generation: str
    tenant: str
    traceparent: str
    usage: Usage
    marks: Marks
    reason: FinishReason | None
    error: SeedanceError | None


@dataclass(slots=True)
class StepOutput:
    """All that one step has for everybody."""

    calls: dict[int, CallOutput] = field(default_factory=dict)
    pressure: Pressure | None = None
    ended: list[EndRecord] = field(default_factory=list)

    def call(self, call: int) -> CallOutput:
        """The call's part, made when first asked for."""
        found = self.calls.get(call)
        if found is None:
            found = self.calls[call] = CallOutput()
        return found
