"""What the gateway needs of the inference instances, free of gRPC: the simulation has its own.

All methods are synchronous and called on the event loop; a listener is called back on the same
loop, entry by entry while one upstream message is handled, so that whatever a listener buffers is
flushed once per message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from seedance.protocol.errors import SeedanceError
from seedance.protocol.events import UpstreamAccepted, UpstreamTokens
from seedance.protocol.frames import Timing, Usage
from seedance.protocol.pressure import PressureLevel
from seedance.protocol.request import GenerateRequest

__all__ = [
    "Attach",
    "NoInstanceError",
    "Open",
    "PressureLevel",
    "StreamHandle",
    "StreamListener",
    "Upstream",
    "UpstreamAccepted",
    "UpstreamTokens",
    "Where",
]


@dataclass(frozen=True, slots=True)
class Where:
    """What decides the instance: the affinity key, the model and the class.

    `user` is the authenticated user or the session's affinity token; `exclude` names instances
    that just failed this stream; `canary` asks for a canary instance; `prefix` are the prompt's
    marks (`mesh.prefixes`).
    """

    user: str
    model: str = ""
    instance_class: str = "standard"
    exclude: frozenset[str] = frozenset()
    canary: bool = False
    prefix: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Open:
    """Begin a generation, or continue it after `forced_prefix`. `credit` None: unlimited.

    `weight` is the tenant's share of the engine; 0: the instance's own settings say it.
    """

    generation: str
    epoch: int
    request: GenerateRequest
    tenant: str
    forced_prefix: tuple[int, ...] = ()
    traceparent: str = ""
    credit: int | None = None
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Attach:
    """Take over a generation on the instance that runs it, from token index `from_token`.

    `tenant` is whose limits it counts against here; the instance knows it already.
    """

    generation: str
    epoch: int
    from_token: int
    traceparent: str = ""
    credit: int | None = None
    tenant: str = ""


class StreamListener(Protocol):
    """Hears one stream. After `on_done`, `on_error` or `on_broken` nothing follows."""

    def on_accepted(self, accepted: UpstreamAccepted) -> None:
        """The instance has taken it."""
        ...

    def on_tokens(self, tokens: UpstreamTokens) -> None:
        """Tokens arrived."""
        ...

    def on_done(self, finish_reason: str, usage: Usage, timing: Timing) -> None:
        """It ended well: `stop`, `length` or `cancelled`."""
        ...

    def on_error(self, error: SeedanceError, usage: Usage | None) -> None:
        """The instance refused or failed it."""
        ...

    def on_pressure(self, level: PressureLevel, reason: str) -> None:
        """The instance asks its callers for less, or no longer."""
        ...

    def on_broken(self) -> None:
        """The call broke: the instance may be gone. Re-open elsewhere, or attach again."""
        ...


class StreamHandle(Protocol):
    """The opener's end of one stream; every method may be called at any time, also after the end."""

    @property
    def instance(self) -> str:
        """The instance's id."""
        ...

    def add_credit(self, tokens: int) -> None:
        """Let the engine send this many more."""
        ...

    def cancel(self) -> None:
        """End it; `on_done` with `cancelled` follows unless it has ended."""
        ...

    def release(self) -> None:
        """Its end is in the store: the instance may forget it. Nothing is heard any more."""
        ...

    def abandon(self) -> None:
        """Stop listening (this owner was fenced): nothing that a newer owner has is touched."""
        ...


class NoInstanceError(SeedanceError):
    """Nobody serves that: `model_not_found`, or `unavailable` when the instances are away."""


class Upstream(Protocol):
    """The instances, as one thing."""

    def choose(self, where: Where) -> str:
        """The instance's id by the router's rule. Raises `NoInstanceError`."""
        ...

    def open(self, instance: str, spec: Open, listener: StreamListener) -> StreamHandle:
        """Send `open` down the shared call to the instance."""
        ...

    def attach(self, instance: str, spec: Attach, listener: StreamListener) -> StreamHandle:
        """Send `attach`; an unknown instance is `on_broken` at the next turn of the loop."""
        ...

    def models(self) -> list[str]:
        """Every name that is served now, aliases included, sorted."""
        ...

    def ready(self) -> bool:
        """At least one instance can take a stream."""
        ...

    def pressure(self) -> PressureLevel:
        """The lowest level any usable instance asks for (a free one is enough)."""
        ...
