"""The streams of a session: what their client may ask of them."""

from __future__ import annotations

from seedance.protocol.effects import CancelUpstream, Effect, Send
from seedance.protocol.errors import ErrorCode
from seedance.protocol.events import LinkUp
from seedance.protocol.frames import Cancel, ErrorFrame, SessionFrame
from seedance.protocol.json_codec import generate_of
from seedance.protocol.session import SessionMachine, SessionRules

RULES = SessionRules()
HELLO = SessionFrame(
    session="s",
    token="t",  # noqa: S106 - no secret
    epoch=1,
    tenant="acme",
    mode="token",
    server="g",
    gateways=(),
    resume_ttl=120,
    heartbeat=RULES.heartbeat,
    window=RULES.window,
)


def _errors(effects: list[Effect]) -> list[tuple[str | None, ErrorCode]]:
    frames = [e.frame for e in effects if isinstance(e, Send)]
    return [(f.id, f.code) for f in frames if isinstance(f, ErrorFrame)]


def test_cancel_acts_once() -> None:
    """CASES 28: the first reaches the instance, the second is nothing, an unknown one is said."""
    machine = SessionMachine("s", RULES, 0.0)
    machine.step(LinkUp(HELLO, windowed=True), 0.0)
    machine.step(generate_of({"id": "a", "prompt": "x"}), 0.0)
    first = machine.step(Cancel("a"), 0.1)
    assert first == [CancelUpstream("a")]
    assert machine.step(Cancel("a"), 0.2) == []
    assert _errors(machine.step(Cancel("b"), 0.3)) == [("b", ErrorCode.UNKNOWN_STREAM)]
