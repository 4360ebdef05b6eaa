"""A `StreamListener` that writes down what it hears."""

from __future__ import annotations

from gateway.upstream.base import PressureLevel, UpstreamAccepted, UpstreamTokens
from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import Timing, Usage

__all__ = ["RecordingListener"]


class RecordingListener:
    """`heard` names the calls in order; the rest keeps their content."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.accepted: UpstreamAccepted | None = None
        self.tokens: list[UpstreamTokens] = []
        self.finish_reason = ""
        self.usage: Usage | None = None
        self.error: SeedanceError | None = None
        self.pressures: list[tuple[PressureLevel, str]] = []

    @property
    def text(self) -> str:
        return b"".join(t.text for t in self.tokens).decode()

    def on_accepted(self, accepted: UpstreamAccepted) -> None:
        self.heard.append("accepted")
        self.accepted = accepted

    def on_tokens(self, tokens: UpstreamTokens) -> None:
        self.heard.append("tokens")
        self.tokens.append(tokens)

    def on_done(self, finish_reason: str, usage: Usage, timing: Timing) -> None:
        self.heard.append("done")
        self.finish_reason, self.usage = finish_reason, usage

    def on_error(self, error: SeedanceError, usage: Usage | None) -> None:
        self.heard.append("error")
        self.error, self.usage = error, usage

    def on_pressure(self, level: PressureLevel, reason: str) -> None:
        self.pressures.append((level, reason))

    def on_broken(self) -> None:
        self.heard.append("broken")
