"""A server-side session without a host: what goes in is told, what comes out is kept."""

from __future__ import annotations

from typing import TypeVar

from seedance.protocol.effects import Effect, Grant, Send
from seedance.protocol.events import (
    FromInstance,
    LinkUp,
    Pump,
    SessionEvent,
    Stored,
    UpstreamAccepted,
    UpstreamDone,
    UpstreamTokens,
)
from seedance.protocol.frames import Generate, ServerFrame, SessionFrame, Timing, Usage
from seedance.protocol.request import GenerateRequest
from seedance.protocol.session import SessionMachine, SessionRules

__all__ = ["HELLO", "Bench", "generate"]

HELLO = SessionFrame("S", "T", 1, "local", "token", "gateway-0", (), 120)
E = TypeVar("E")


def generate(name: str | None = "a", prompt: str = "hi", **options: object) -> Generate:
    """A `generate` frame."""
    return Generate(name, GenerateRequest(prompt=prompt), **options)  # type: ignore[arg-type]


class Bench:
    """A session with a connection; `now` moves when told."""

    def __init__(self, *, windowed: bool = True, rules: SessionRules | None = None) -> None:
        self.now = 100.0
        self.machine = SessionMachine("S", rules or SessionRules(), self.now)
        self.effects: list[Effect] = []
        self.windowed = windowed
        self.step(LinkUp(HELLO, windowed))

    def step(self, event: SessionEvent) -> list[Effect]:
        effects = self.machine.step(event, self.now)
        self.effects += effects
        for stream in self.machine.streams.live.values():
            stream.text.check()
        self.machine.delivery.log.check()
        return effects

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def sent(self) -> list[ServerFrame]:
        """All frames handed to the transport."""
        return [effect.frame for effect in self.effects if isinstance(effect, Send)]

    def of(self, kind: type[E]) -> list[E]:
        """All effects, or all frames sent, of a kind."""
        return [x for x in [*self.effects, *self.sent()] if isinstance(x, kind)]

    @property
    def credit(self) -> int:
        """Tokens granted after opening."""
        return sum(grant.tokens for grant in self.of(Grant))

    def open(self, name: str = "a", **options: object) -> None:
        """A stream that is stored and accepted."""
        self.step(generate(name, **options))
        self.step(Stored(0, 0, (name,)))
        self.accept(name)
        self.step(Pump())

    def accept(self, name: str = "a") -> None:
        self.step(FromInstance(name, UpstreamAccepted("i-0", "m", 8, 100, 7, 0)))

    def tokens(self, *texts: str, name: str = "a") -> None:
        """One token each, and a turn of the loop."""
        for text in texts:
            buffer = self.machine.streams.live[name].text
            index, offset = len(buffer.token_ids), buffer.received_bytes
            what = UpstreamTokens((index,), index, text.encode(), offset, 1)
            self.step(FromInstance(name, what))
        self.step(Pump())

    def done(self, name: str = "a", reason: str = "stop") -> None:
        self.step(FromInstance(name, UpstreamDone(reason, Usage(7, 2, 99), Timing())))
        self.step(Pump())
