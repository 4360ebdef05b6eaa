"""The way out of a session: window, credit, acknowledgements, timers."""

from __future__ import annotations

from seedance.protocol.effects import (
    CloseLink,
    OpenUpstream,
    Send,
)
from seedance.protocol.errors import CloseCode, ErrorCode
from seedance.protocol.events import (
    LinkDown,
    LinkUp,
    LinkWritable,
    Pump,
    Stored,
    StoreLevel,
    Tick,
)
from seedance.protocol.frames import (
    Accepted,
    Ack,
    Cancel,
    Checkpoint,
    Done,
    ErrorFrame,
    Ping,
    Pong,
    Token,
)
from seedance.protocol.session import SessionRules, SessionState
from seedance.protocol.window import CREDIT_MAX
from tests.support.server_session import HELLO, Bench


def seqs(bench: Bench) -> list[int]:
    return [e.seq for e in bench.effects if isinstance(e, Send) and e.seq is not None]


def test_the_window_bounds_what_is_in_flight() -> None:
    """At 32 unacknowledged frames text waits, merged; `done` waits for its text; an `ack` frees both."""
    bench = Bench()
    bench.open()
    for number in range(40):
        bench.tokens(f"{number} ")
    assert len(bench.machine.delivery.log) == 32
    bench.done()
    assert bench.of(Done) == []
    bench.effects.clear()
    bench.step(Ack(20))
    tokens = bench.of(Token)
    assert len(tokens) == 1, "what waited leaves as one delta"
    assert tokens[0].tokens == 40 - 31
    assert len(bench.of(Done)) == 1


def test_accepted_and_ends_do_not_wait_for_the_window() -> None:
    """A full window stops text alone (§4.3)."""
    bench = Bench()
    bench.open()
    for number in range(40):
        bench.tokens(f"{number} ")
    bench.open("b")
    bench.done("b")
    assert [a.id for a in bench.of(Accepted)] == ["a", "b"]
    assert [d.id for d in bench.of(Done)] == ["b"]


def test_credit_follows_the_window() -> None:
    """The engine is never ahead by more than the free window; a full one gives none (§4.3)."""
    bench = Bench()
    bench.open()
    [opened] = bench.of(OpenUpstream)
    assert opened.credit == CREDIT_MAX
    made = 0
    while made < opened.credit + bench.credit:
        bench.tokens("x ")
        made += 1
    assert made + 1 >= 32  # with `accepted` the window is full
    assert made <= 32 + CREDIT_MAX
    granted = bench.credit
    bench.step(Pump())
    assert bench.credit == granted
    bench.step(Ack(20))
    assert bench.credit > granted


def test_half_a_character_never_starves_a_stream() -> None:
    """With one token of credit, a token that brings no text is followed by credit for the next."""
    bench = Bench()
    for number in range(40):
        bench.open(f"s{number}")
    bench.step(Ack(41))
    bench.effects.clear()
    stream = bench.machine.streams.live["s0"]
    while stream.allowed_tokens > len(stream.text.token_ids):
        bench.tokens("", name="s0")
        if bench.credit:
            break
    assert bench.credit


def test_streams_take_turns_in_a_narrow_window() -> None:
    """When little of the window is left it is not always the same stream that gets it."""
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.open(name)
    for _ in range(40):
        for name in ("a", "b", "c"):
            bench.tokens("x", name=name)
        bench.step(Ack(bench.machine.delivery.log.base + 1))
    counts = [sum(t.id == name for t in bench.of(Token)) for name in ("a", "b", "c")]
    assert min(counts) > 10


def test_a_full_transport_pauses_a_simple_client() -> None:
    """TCP is its flow control: no frames and no credit until the buffer drains (§1)."""
    bench = Bench(windowed=False)
    bench.open()
    bench.step(LinkWritable(writable=False))
    bench.effects.clear()
    for _ in range(100):
        bench.tokens("x")
    assert bench.effects == []
    bench.step(LinkWritable(writable=True))
    assert [t.tokens for t in bench.of(Token)] == [100]
    assert bench.credit > 0


def test_the_first_ack_makes_a_simple_client_windowed() -> None:
    """From then on what is unacknowledged is kept, from where the client says."""
    bench = Bench(windowed=False)
    bench.open()
    for _ in range(200):
        bench.tokens("x")
    log = bench.machine.delivery.log
    assert len(log) == 32, "a simple client's frames are kept in a ring of the initial window"
    bench.step(Ack(180))
    assert (log.base, bench.machine.delivery.windowed) == (180, True)
    assert bench.machine.delivery.free > 0


def test_an_ack_beyond_what_was_sent_is_refused() -> None:
    """It names `seq`, changes nothing, and the session goes on."""
    bench = Bench()
    bench.open()
    bench.step(Ack(99))
    [error] = bench.of(ErrorFrame)
    assert (error.code, error.field, error.id) == (ErrorCode.BAD_REQUEST, "seq", None)
    assert bench.machine.delivery.log.base == 1


def test_a_silent_windowed_client_is_asked_and_given_up() -> None:
    """`ping` after a third of the time, 4408 after all of it; the session stays (§2)."""
    bench = Bench()
    bench.open()
    bench.wait(5)
    bench.step(Tick())
    assert len(bench.of(Ping)) == 1
    bench.step(Pong(1))
    bench.wait(14.9)
    bench.step(Tick())
    assert not bench.of(CloseLink)
    bench.wait(0.2)
    bench.step(Tick())
    assert [e.code for e in bench.of(CloseLink)] == [CloseCode.TIMEOUT]
    assert bench.machine.state is SessionState.LIVE


def test_a_simple_client_may_be_silent() -> None:
    """It has no session timer (§1)."""
    bench = Bench(windowed=False)
    bench.wait(1000)
    bench.step(Tick())
    assert bench.machine.deadline(bench.now) is None
    assert bench.of(Ping) == []
    assert bench.of(CloseLink) == []


def test_only_the_leftmost_frame_is_resent() -> None:
    """After a second, then two, then four, and only into an idle transport; then no more (§4.2)."""
    bench = Bench()
    bench.open()
    bench.tokens("x")
    bench.effects.clear()
    waits = (1.0, 2.0, 4.0)
    for wait in waits:
        bench.wait(wait)
        bench.step(Pong(0))
        bench.step(Tick())
        bench.step(Tick())
    bench.wait(8.0)
    bench.step(Pong(0))
    bench.step(Tick())
    assert seqs(bench) == [1, 1, 1]


def test_nothing_is_resent_behind_what_has_not_left_yet() -> None:
    """While the transport's buffer holds bytes the frame may still be in it; it is looked at later."""
    bench = Bench()
    bench.open()
    bench.effects.clear()
    bench.wait(1)
    bench.step(Tick(idle=False))
    assert seqs(bench) == []
    bench.wait(1)
    bench.step(Tick())
    assert seqs(bench) == [1]


def test_a_stalled_stream_gets_no_credit_until_an_ack_moves() -> None:
    """Frames in flight and no moving `ack` for 8 s: the engine pauses (§2)."""
    bench = Bench()
    bench.open()
    bench.wait(8)
    bench.step(Ack(1))
    for _ in range(20):
        bench.tokens("x")
    assert bench.credit == 0
    bench.step(Ack(21))
    assert bench.credit > 0


def test_a_client_that_never_acknowledges_is_closed() -> None:
    """Frames that do not wait for the window are bounded all the same."""
    bench = Bench(rules=SessionRules(log_entries_max=50))
    for _ in range(60):
        bench.step(Cancel("nobody"))
    assert [e.code for e in bench.of(CloseLink)] == [CloseCode.TIMEOUT]


def test_checkpoints_tell_what_is_stored() -> None:
    """At once after a stream's end, and when the store goes away."""
    bench = Bench()
    bench.open()
    bench.done()
    bench.step(Stored(2, 5_000))
    bench.step(StoreLevel(committed=False, wall_ms=5_000))
    assert [(c.sequence_id, c.ack_level) for c in bench.of(Checkpoint)] == [
        (2, "committed"),
        (2, "memory"),
    ]


def test_a_second_link_has_its_own_timers() -> None:
    """The time without a connection does not count as the new one's silence."""
    bench = Bench()
    bench.open()
    bench.step(LinkDown())
    bench.wait(60)
    bench.step(LinkUp(HELLO, windowed=True))
    bench.step(Tick())
    assert bench.of(CloseLink) == []
