"""A session's streams: opened once, ended once, found again after a break."""

from __future__ import annotations

from dataclasses import replace

from seedance.protocol.effects import (
    CancelUpstream,
    Fenced,
    Finished,
    OpenUpstream,
    RecoverUpstream,
    Send,
)
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.events import (
    FromInstance,
    LinkWritable,
    Pump,
    Stored,
    UpstreamBroken,
    UpstreamFailed,
)
from seedance.protocol.frames import (
    Accepted,
    Ack,
    Cancel,
    Done,
    ErrorFrame,
    Token,
)
from seedance.protocol.request import LIMITS, GenerateRequest, Sampling
from seedance.protocol.session import SessionRules
from seedance.protocol.window import CREDIT_MAX
from tests.support.server_session import Bench, generate


def seqs(bench: Bench) -> list[int]:
    return [e.seq for e in bench.effects if isinstance(e, Send) and e.seq is not None]


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


def test_a_collected_stream_ends_before_its_frame_is_too_large() -> None:
    """More log-probabilities than a frame holds: refused when it is known, cancelled, and not billed."""
    bench = Bench()
    request = GenerateRequest(prompt="hi", sampling=Sampling(logprobs=20))
    bench.step(replace(generate(stream=False), request=request))
    bench.step(Stored(0, 0, ("a",)))
    bench.accept()
    most = LIMITS.whole_logprobs_max // 21
    bench.tokens(*["x"] * most)
    assert bench.of(CancelUpstream) == []
    bench.tokens("y")
    assert bench.of(CancelUpstream) == [CancelUpstream("a")]
    [error] = bench.of(ErrorFrame)
    assert (error.code, error.field) == (ErrorCode.BAD_REQUEST, "max_tokens")
    assert error.usage is not None
    assert error.usage.completion_tokens == 0


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


def test_a_broken_call_is_recovered_with_fresh_credit() -> None:
    """The host is asked to find the stream again; its text goes on where it was."""
    bench = Bench()
    bench.open()
    bench.tokens("a")
    bench.step(FromInstance("a", UpstreamBroken()))
    [recovery] = bench.of(RecoverUpstream)
    assert recovery.credit == CREDIT_MAX
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
