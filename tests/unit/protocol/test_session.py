"""A session on the server's side: what is answered, what is asked of the host."""

from __future__ import annotations

from seedance.protocol.effects import (
    CancelUpstream,
    CloseLink,
    Fenced,
    Finished,
    OpenUpstream,
    RecoverUpstream,
    Send,
    SessionOver,
)
from seedance.protocol.errors import CloseCode, ErrorCode, SeedanceError
from seedance.protocol.events import (
    FromInstance,
    LinkDown,
    LinkUp,
    LinkWritable,
    Pump,
    Refused,
    Stored,
    StoreLevel,
    Tick,
    UpstreamBroken,
    UpstreamFailed,
)
from seedance.protocol.frames import (
    Accepted,
    Ack,
    Cancel,
    Checkpoint,
    Close,
    Done,
    ErrorFrame,
    Ping,
    Pong,
    Resume,
    SessionFrame,
    Token,
)
from seedance.protocol.session import SessionRules, SessionState
from tests.support.server_session import HELLO, Bench, generate


def seqs(bench: Bench) -> list[int]:
    return [e.seq for e in bench.effects if isinstance(e, Send) and e.seq is not None]


def test_the_session_is_told_at_once_and_is_provisional() -> None:
    """Nothing is stored until the first `generate`."""
    bench = Bench()
    assert bench.of(SessionFrame) == [HELLO]
    assert bench.machine.state is SessionState.PROVISIONAL
    bench.step(LinkDown())
    assert bench.of(SessionOver)


def test_accepted_waits_for_store_and_instance() -> None:
    """It leaves only when both have the stream, whichever comes first (§4.4)."""
    for store_first in (True, False):
        bench = Bench()
        bench.step(generate())
        assert [e.stream for e in bench.of(OpenUpstream)] == ["a"]
        if store_first:
            bench.step(Stored(0, 0, ("a",)))
        else:
            bench.accept()
        bench.step(Pump())
        assert bench.of(Accepted) == []
        if store_first:
            bench.accept()
        else:
            bench.step(Stored(0, 0, ("a",)))
        bench.step(Pump())
        assert [a.instance for a in bench.of(Accepted)] == ["i-0"]


def test_a_stream_from_beginning_to_end() -> None:
    """Numbers rise by one, offsets by bytes, and the bill is what was framed."""
    bench = Bench()
    bench.open()
    bench.tokens("é", "b")
    bench.tokens("c")
    bench.done()
    assert seqs(bench) == [1, 2, 3, 4]
    assert [(t.offset, t.delta, t.tokens) for t in bench.of(Token)] == [(0, "éb", 2), (3, "c", 1)]
    [end] = bench.of(Done)
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (7, 3)
    assert [(f.reason, f.usage) for f in bench.of(Finished)] == [("stop", end.usage)]
    assert bench.machine.streams.live == {}


def test_a_repeated_generate_runs_once() -> None:
    """Same content: its unacknowledged frames come again with the same numbers (CASES 63)."""
    bench = Bench()
    bench.open()
    bench.tokens("x")
    before = [e for e in bench.effects if isinstance(e, Send) and e.seq]
    bench.effects.clear()
    for _ in range(4):
        bench.step(generate())
    again = [e for e in bench.effects if isinstance(e, Send)]
    assert again == before * 4
    assert bench.of(OpenUpstream) == []
    bench.step(Ack(3))
    bench.effects.clear()
    bench.step(generate())
    assert bench.sent() == [], "what was acknowledged is not sent again"


def test_an_id_with_other_content_is_refused() -> None:
    """And the stream that has it goes on."""
    bench = Bench()
    bench.open()
    bench.step(generate(prompt="other"))
    [error] = bench.of(ErrorFrame)
    assert (error.code, error.id, error.field) == (ErrorCode.BAD_REQUEST, "a", "id")
    assert error.usage is None
    assert "a" in bench.machine.streams.live


def test_an_ended_id_is_remembered() -> None:
    """A `generate` that arrives again after its end does not run again."""
    bench = Bench(rules=SessionRules(ended_max=2))
    for name in ("a", "b", "c"):
        bench.open(name)
        bench.done(name)
    bench.effects.clear()
    bench.step(generate("c"))
    assert bench.of(OpenUpstream) == []
    bench.step(generate("a"))
    assert bench.of(OpenUpstream), "only so many ids are remembered"


def test_an_id_is_assigned_when_left_out() -> None:
    """Each of two nameless streams gets a name of its own."""
    bench = Bench()
    bench.step(generate("stream-1"))
    bench.step(generate(None))
    bench.step(generate(None))
    assert [e.stream for e in bench.of(OpenUpstream)] == ["stream-1", "stream-2", "stream-3"]


def test_at_most_64_streams() -> None:
    """The 65th is `overloaded`, retryable, and free."""
    bench = Bench()
    for number in range(64):
        bench.step(generate(f"s{number}"))
    bench.step(generate("one more"))
    [error] = bench.of(ErrorFrame)
    assert (error.code, error.id, error.retryable) == (ErrorCode.OVERLOADED, "one more", True)
    assert error.usage is not None
    assert len(bench.machine.streams.live) == 64


def test_a_stream_has_a_seed_that_a_repetition_shares() -> None:
    """Another instance can go on as the first would have."""
    seeds = set()
    for _ in range(2):
        bench = Bench()
        bench.step(generate())
        seeds.add(bench.machine.streams.live["a"].wants.request.sampling.seed)
    assert len(seeds) == 1
    assert None not in seeds


def test_cancel_once_twice_and_unknown() -> None:
    """The first ends it, the second is nothing, a stranger is `unknown_stream` (CASES 28)."""
    bench = Bench()
    bench.open()
    bench.tokens("x")
    bench.step(Cancel("a"))
    assert len(bench.of(CancelUpstream)) == 1
    bench.step(Cancel("a"))
    bench.done(reason="cancelled")
    bench.step(Cancel("a"))
    [end] = bench.of(Done)
    assert (end.finish_reason, end.usage.completion_tokens) == ("cancelled", 1)
    assert bench.of(ErrorFrame) == []
    bench.step(Cancel("b"))
    [error] = bench.of(ErrorFrame)
    assert (error.code, error.id) == (ErrorCode.UNKNOWN_STREAM, "b")


def test_cancelled_text_that_waited_is_free() -> None:
    """What was computed and never framed is discarded (§4.9)."""
    bench = Bench()
    bench.open()
    bench.step(LinkWritable(writable=False))
    bench.tokens("x", "y")
    bench.step(Cancel("a"))
    bench.step(LinkWritable(writable=True))
    bench.done(reason="cancelled")
    [end] = bench.of(Done)
    assert end.usage.completion_tokens == 0
    assert bench.of(Token) == []


def test_a_collected_stream_tells_its_text_with_its_end() -> None:
    """`stream: false`: no token frames, all text in `done.text`, billed like the others (CASES 85)."""
    bench = Bench()
    bench.open(stream=False)
    bench.tokens("a", "b")
    bench.done()
    assert bench.of(Token) == []
    [end] = bench.of(Done)
    assert (end.text, end.usage.completion_tokens) == ("ab", 2)


def test_an_error_of_the_instance_is_an_error_and_never_an_end() -> None:
    """What was framed is kept and billed; no `done` follows (CASES 67)."""
    bench = Bench()
    bench.open()
    bench.tokens("a")
    failure = SeedanceError(ErrorCode.UNAVAILABLE, "gone")
    bench.step(FromInstance("a", UpstreamFailed(failure)))
    bench.step(Pump())
    [error] = bench.of(ErrorFrame)
    assert (error.code, error.id, error.retryable) == (ErrorCode.UNAVAILABLE, "a", True)
    assert error.retry_after_ms is not None
    assert error.usage is not None
    assert error.usage.completion_tokens == 1
    assert bench.of(Done) == []


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
    assert opened.credit == 32
    made = 0
    while made < opened.credit + bench.credit:
        bench.tokens("x ")
        made += 1
    assert 32 <= made <= 64
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
    assert len(log) == 128, "a simple client's frames are kept in a ring"
    bench.step(Ack(150))
    assert (log.base, bench.machine.delivery.windowed) == (150, True)


def test_an_ack_beyond_what_was_sent_is_refused() -> None:
    """It names `seq`, changes nothing, and the session goes on."""
    bench = Bench()
    bench.open()
    bench.step(Ack(99))
    [error] = bench.of(ErrorFrame)
    assert (error.code, error.field, error.id) == (ErrorCode.BAD_REQUEST, "seq", None)
    assert bench.machine.delivery.log.base == 1


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
        bench.step(Tick(idle=False))
        bench.step(Tick())
        bench.step(Tick())
    bench.wait(8.0)
    bench.step(Pong(0))
    bench.step(Tick())
    assert seqs(bench) == [1, 1, 1]


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


def test_a_broken_call_is_recovered_with_fresh_credit() -> None:
    """The host is asked to find the stream again; its text goes on where it was."""
    bench = Bench()
    bench.open()
    bench.tokens("a")
    bench.step(FromInstance("a", UpstreamBroken()))
    [recovery] = bench.of(RecoverUpstream)
    assert recovery.credit == 30
    bench.accept()
    bench.tokens("b")
    assert [t.offset for t in bench.of(Token)] == [0, 1]
    assert len(bench.of(Accepted)) == 1


def test_a_cancelled_stream_is_not_recovered() -> None:
    """If its call breaks meanwhile, it has ended."""
    bench = Bench()
    bench.open()
    bench.step(Cancel("a"))
    bench.step(FromInstance("a", UpstreamBroken()))
    assert bench.of(RecoverUpstream) == []
    assert [d.finish_reason for d in bench.of(Done)] == ["cancelled"]


def test_a_newer_epoch_at_the_instance_means_that_we_are_fenced() -> None:
    """The stream is not ended: somebody else owns it (§4.6)."""
    bench = Bench()
    bench.open()
    newer = SeedanceError(ErrorCode.SESSION_EXPIRED, "newer epoch")
    bench.step(FromInstance("a", UpstreamFailed(newer)))
    assert bench.of(Fenced)
    assert bench.of(Finished) == []


def test_late_words_about_an_ended_stream_change_nothing() -> None:
    """The instance may still be speaking."""
    bench = Bench()
    bench.open()
    bench.done()
    count = len(bench.effects)
    bench.accept()
    bench.done()
    bench.step(FromInstance("a", UpstreamBroken()))
    assert len(bench.effects) == count


def test_a_second_link_has_its_own_timers() -> None:
    """The time without a connection does not count as the new one's silence."""
    bench = Bench()
    bench.open()
    bench.step(LinkDown())
    bench.wait(60)
    bench.step(LinkUp(HELLO, windowed=True))
    bench.step(Tick())
    assert bench.of(CloseLink) == []
