"""A client machine under the thumb of a test: its clock, its socket and its server are the test."""

from __future__ import annotations

from seedance.protocol import client_events as on
from seedance.protocol.client import ClientMachine
from seedance.protocol.frames import (
    Accepted,
    ClientFrame,
    Done,
    Generate,
    Resumed,
    SequencedFrame,
    ServerFrame,
    SessionFrame,
    Timing,
    Token,
    Usage,
)
from seedance.protocol.reconnect import Backoff
from seedance.protocol.request import GenerateRequest

__all__ = ["SESSION", "Bench", "accepted", "done", "generate", "token"]

SESSION = SessionFrame(
    session="s1",
    token="secret",  # noqa: S106
    epoch=1,
    tenant="local",
    mode="token",
    server="test",
    gateways=("ws://a:1", "ws://b:2"),
    resume_ttl=120,
)


def generate(stream_id: str) -> Generate:
    return Generate(stream_id, GenerateRequest(prompt="x"))


def accepted(stream_id: str) -> Accepted:
    return Accepted(stream_id, "i", 1, 100)


def token(stream_id: str, offset: int, delta: str) -> Token:
    return Token(stream_id, offset, delta, 1)


def done(stream_id: str, reason: str = "stop") -> Done:
    return Done(stream_id, reason, Usage(1, 0, 1), Timing())


class Bench:
    """Drives a `ClientMachine`; `jitter` is always one half."""

    def __init__(self, url: str = "ws://a:1/v2/infer?mode=token", **backoff: float) -> None:
        self.machine = ClientMachine(url, jitter=lambda: 0.5, backoff=Backoff(**backoff))
        self.now = 100.0
        self.sent: list[ClientFrame] = []
        self.dialled: list[str] = []
        self.delivered: list[SequencedFrame] = []
        self.hangups: list[int] = []

    def step(self, event: on.Event) -> None:
        for effect in self.machine.step(event, self.now):
            match effect:
                case on.Send(frame):
                    self.sent.append(frame)
                case on.Dial(url):
                    self.dialled.append(url)
                case on.Deliver(frame):
                    self.delivered.append(frame)
                case on.Hangup(code):
                    self.hangups.append(code)

    def receive(self, frame: ServerFrame, seq: int | None = None) -> None:
        self.step(on.Received(frame, seq))

    def begin(self, *stream_ids: str) -> None:
        """A session stands and has accepted these streams, in frames 1, 2 and on."""
        for stream_id in stream_ids:
            self.step(on.Submit(generate(stream_id)))
        self.step(on.Connect())
        self.step(on.Opened())
        self.receive(SESSION)
        for seq, stream_id in enumerate(stream_ids, 1):
            self.receive(accepted(stream_id), seq)

    def wait(self) -> float:
        """Let time pass up to the machine's deadline; gives how long that was."""
        deadline = self.machine.deadline()
        assert deadline is not None
        waited = max(0.0, deadline - self.now)
        self.now += waited
        self.step(on.Tick())
        return waited

    def lose(self, code: int = 1006) -> None:
        self.step(on.Lost(code))

    def resume(self, from_seq: int) -> None:
        """The next connection stands, and the server goes on at `from_seq`."""
        self.wait()
        self.step(on.Opened())
        self.receive(Resumed(from_seq, SESSION))

    def text(self, stream_id: str) -> str:
        return "".join(
            f.delta for f in self.delivered if isinstance(f, Token) and f.id == stream_id
        )

    def take_sent(self) -> list[ClientFrame]:
        sent, self.sent = self.sent, []
        return sent
