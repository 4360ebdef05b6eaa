"""A session on the server's side: what is answered, and how it ends."""

from __future__ import annotations

from seedance.protocol.effects import (
    CancelUpstream,
    CloseLink,
    Finished,
    SessionOver,
)
from seedance.protocol.errors import CloseCode, ErrorCode, SeedanceError
from seedance.protocol.events import (
    LinkDown,
    Refused,
    Tick,
)
from seedance.protocol.frames import (
    Close,
    ErrorFrame,
    Ping,
    Pong,
    Resume,
    SessionFrame,
    Token,
)
from seedance.protocol.session import SessionState
from tests.support.server_session import HELLO, Bench


def test_the_session_is_told_at_once_and_is_provisional() -> None:
    """Nothing is stored until the first `generate`."""
    bench = Bench()
    assert bench.of(SessionFrame) == [HELLO]
    assert bench.machine.state is SessionState.PROVISIONAL
    bench.step(LinkDown())
    assert bench.of(SessionOver)


def test_bad_frames_keep_the_session() -> None:
    """A refused frame is an `error`; a refused `generate` is the whole of its stream (CASES 20, 22)."""
    bench = Bench()
    bench.open()
    bad = SeedanceError(ErrorCode.BAD_REQUEST, "`prompt` must be text", field="prompt")
    bench.step(Refused(bad))
    bench.step(Refused(bad, "a"))
    bench.step(Refused(bad, "z"))
    assert [(e.id, e.usage is None) for e in bench.of(ErrorFrame)] == [
        (None, True),
        ("a", True),
        ("z", False),
    ]
    bench.tokens("still here")
    assert bench.of(Token)


def test_a_late_resume_is_refused() -> None:
    """Only the first message may be one: a second replay would say everything twice (CASES 50)."""
    bench = Bench()
    bench.open()
    bench.tokens("x")
    bench.effects.clear()
    bench.step(Resume("S", "T", 0, {}))
    assert [type(f) for f in bench.sent()] == [ErrorFrame]


def test_ping_is_answered_unchanged() -> None:
    """`t` comes back."""
    bench = Bench()
    bench.step(Ping(1.5))
    assert bench.of(Pong) == [Pong(1.5)]


def test_close_frees_everything() -> None:
    """What runs is cancelled and billed as far as it was framed."""
    bench = Bench()
    bench.open()
    bench.tokens("x")
    bench.step(Close())
    assert [e.stream for e in bench.of(CancelUpstream)] == ["a"]
    assert [(f.reason, f.usage.completion_tokens) for f in bench.of(Finished)] == [("cancelled", 1)]
    assert [e.code for e in bench.of(CloseLink)] == [CloseCode.NORMAL]
    assert bench.of(SessionOver)


def test_a_simple_clients_streams_end_with_its_connection() -> None:
    """`cancel` is its default; when nothing runs any more, the session is over (CASES 26)."""
    bench = Bench(windowed=False)
    bench.open()
    bench.tokens("x")
    bench.step(LinkDown())
    assert [e.stream for e in bench.of(CancelUpstream)] == ["a"]
    assert not bench.of(SessionOver)
    bench.done(reason="cancelled")
    assert [f.usage.completion_tokens for f in bench.of(Finished)] == [1]
    assert bench.of(SessionOver)


def test_a_windowed_clients_streams_outlive_its_connection() -> None:
    """They go on until the window is full, then pause, and end when the time is up (§4.7)."""
    bench = Bench()
    bench.open()
    bench.open("c", on_disconnect="cancel")
    bench.step(LinkDown())
    assert [e.stream for e in bench.of(CancelUpstream)] == ["c"]
    for _ in range(200):
        if bench.machine.streams.live["a"].allowed_tokens == len(
            bench.machine.streams.live["a"].text.token_ids
        ):
            break
        bench.tokens("x")
    assert len(bench.machine.streams.live["a"].text.token_ids) <= 40
    assert bench.machine.deadline(bench.now) == bench.now + 120
    bench.wait(120)
    bench.step(Tick())
    assert bench.of(SessionOver)
    bills = {f.stream: f.usage.completion_tokens for f in bench.of(Finished)}
    assert bills == {"a": 0, "c": 0}, "nothing of it was framed"
