"""Where a session goes on (§4.5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seedance.protocol.effects import (
    CancelUpstream,
    CloseLink,
    Finished,
    RecoverUpstream,
    Send,
    SessionOver,
)
from seedance.protocol.errors import CloseCode, ErrorCode
from seedance.protocol.events import LinkDown, ResumeOn, Stored, Tick
from seedance.protocol.frames import (
    Ack,
    Cancel,
    Close,
    Done,
    ErrorFrame,
    Generate,
    Resume,
    Resumed,
    Token,
)
from seedance.protocol.log import FrameLog
from seedance.protocol.resume import ResumeFault
from seedance.protocol.session import SessionMachine, SessionRules
from seedance.protocol.stream import StreamMachine
from seedance.protocol.text import TextBuffer
from tests.support.server_session import HELLO, Bench, generate

KEPT = generate(on_disconnect="keep")


def running(*texts: str) -> Bench:
    """A session whose stream has sent `accepted` (1) and these tokens (2, 3, …), then was cut."""
    bench = Bench()
    bench.open()
    for text in texts:
        bench.tokens(text)
    bench.step(LinkDown())
    bench.effects.clear()
    return bench


def resume(bench: Bench, last_seq: int, **offsets: int) -> list[tuple[int, str]]:
    """Resume; what followed `resumed`, as (seq, delta or type)."""
    wants = Resume("S", "T", last_seq, offsets)
    bench.machine.check_resume(wants)
    bench.step(ResumeOn(wants, replace(HELLO, epoch=2), windowed=True))
    frames = [e for e in bench.effects if isinstance(e, Send)]
    assert isinstance(frames[0].frame, Resumed)
    assert frames[0].frame.from_seq == last_seq + 1
    return [
        (e.seq or 0, e.frame.delta if isinstance(e.frame, Token) else type(e.frame).__name__)
        for e in frames[1:]
    ]


def test_what_follows_last_seq_comes_again_as_it_was() -> None:
    """Same numbers, same cuts; then the text goes on."""
    bench = running("a", "b", "c")
    assert resume(bench, 2, a=1) == [(3, "b"), (4, "c")]
    bench.tokens("d")
    assert [(t.offset, t.delta) for t in bench.of(Token)][-1] == (3, "d")


def test_text_that_came_meanwhile_leaves_in_one_frame() -> None:
    """Without a connection nothing is numbered: what gathered is merged."""
    bench = running("a")
    bench.tokens("b", "c")
    assert resume(bench, 2, a=1) == [(3, "bc")]


def test_resuming_again_and_again_changes_nothing() -> None:
    """With nothing new in between, each answer is the same (CASES 50)."""
    bench = running("a", "b")
    for _ in range(3):
        bench.effects.clear()
        assert resume(bench, 1, a=0) == [(2, "a"), (3, "b")]
        bench.step(LinkDown())


def test_last_seq_is_an_acknowledgement() -> None:
    """What the client processed is never sent again."""
    bench = running("a", "b")
    resume(bench, 3, a=2)
    assert len(bench.machine.delivery.log) == 0


def test_an_end_that_was_missed_is_told() -> None:
    """A stream that ended while the client was away still ends for it (CASES 51)."""
    bench = running("a")
    bench.done()
    assert resume(bench, 2, a=1) == [(3, "Done")]


def test_frames_that_are_gone_are_a_gap() -> None:
    """A client that forgot what it acknowledged cannot go on exactly, and is told so."""
    bench = Bench()
    bench.open()
    bench.tokens("a")
    bench.step(Ack(3))
    with pytest.raises(ResumeFault) as fault:
        bench.machine.check_resume(Resume("S", "T", 1, {"a": 0}))
    assert fault.value.error.code is ErrorCode.RESUME_GAP
    assert fault.value.close_code is CloseCode.SESSION_UNKNOWN


def test_a_number_that_was_never_sent_is_refused() -> None:
    """This gateway knows what it sent."""
    bench = running("a")
    with pytest.raises(ResumeFault) as fault:
        bench.machine.check_resume(Resume("S", "T", 99, {}))
    assert fault.value.error.field == "last_seq"
    assert fault.value.close_code is CloseCode.PROTOCOL_ERROR


def test_an_offset_that_contradicts_last_seq_ends_that_stream_alone() -> None:
    """The text cannot be exact: `resume_gap`, and the other stream goes on."""
    bench = Bench()
    bench.open("a")
    bench.open("b")
    bench.tokens("xy")
    bench.step(LinkDown())
    bench.effects.clear()
    assert resume(bench, 3, a=1, b=0) == [(4, "ErrorFrame")]
    [error] = bench.of(ErrorFrame)
    assert (error.code, error.id) == (ErrorCode.RESUME_GAP, "a")
    assert [e.stream for e in bench.of(CancelUpstream)] == ["a"]
    assert list(bench.machine.streams.live) == ["b"]


def test_a_stream_that_nobody_knows_is_a_gap_when_it_had_text() -> None:
    """Text that is lost is said to be lost; a request without text is simply asked again."""
    bench = running("a")
    assert resume(bench, 2, a=1, lost=5, asked=0) == [(3, "ErrorFrame")]
    [error] = bench.of(ErrorFrame)
    assert (error.code, error.id) == (ErrorCode.RESUME_GAP, "lost")


def restored(framed_bytes: int, *, last_seq: int = 3, wants: Generate = KEPT) -> Bench:
    """A session out of the store, whose former owner may have sent more than it stored."""
    bench = Bench()
    stream = StreamMachine(wants, "print")
    text = TextBuffer(range(framed_bytes), framed_bytes, framed_bytes)
    stream.restore(text, told_accepted=True)
    bench.machine = SessionMachine(
        "S", SessionRules(), bench.now, log=FrameLog(next_seq=last_seq + 1), live={"a": stream}
    )
    bench.effects.clear()
    return bench


def test_the_client_may_be_ahead_of_the_store() -> None:
    """Numbers go on after what it processed, text at its offset, and no number is used twice (CASES 57)."""
    bench = restored(framed_bytes=2)
    assert resume(bench, 120, a=4) == []
    assert [e.stream for e in bench.of(RecoverUpstream)] == ["a"]
    bench.accept()
    bench.tokens("c", "d", "e")
    tokens = [(e.seq, e.frame) for e in bench.effects if isinstance(e, Send) and e.seq]
    [(seq, frame)] = tokens
    assert isinstance(frame, Token)
    assert (seq, frame.offset, frame.delta, frame.tokens) == (121, 4, "e", 1)
    bench.done()
    [end] = bench.of(Done)
    assert end.usage.completion_tokens == 5, "what the former owner framed is counted, too"


def test_an_end_that_the_client_has_is_settled_silently() -> None:
    """−1: nothing more is sent of it, but what it cost is found out and billed."""
    bench = restored(framed_bytes=2)
    resume(bench, 9, a=-1)
    bench.accept()
    bench.tokens("c")
    bench.done()
    assert bench.of(Token) == []
    assert bench.of(Done) == []
    assert bench.machine.streams.live == {}
    assert bench.machine.streams.ended == {"a": "print"}


@pytest.mark.parametrize("wants", [KEPT, generate(on_disconnect="cancel"), generate(stream=False)])
def test_a_session_closes_when_what_its_client_has_is_billed(wants: Generate) -> None:
    """`close` by a client that has the end, at an owner that is yet to hear it: the bill is what was told."""
    bench = restored(framed_bytes=2, wants=wants)
    resume(bench, 9, a=-1)
    bench.accept()
    bench.step(Cancel("a"))
    bench.step(Close())
    assert [e.code for e in bench.of(CloseLink)] == [CloseCode.NORMAL]
    assert (bench.of(SessionOver), bench.of(CancelUpstream)) == ([], [])
    with pytest.raises(ResumeFault, match="no such session"):
        bench.machine.check_resume(Resume("S", "T", 9, {"a": -1}))
    bench.step(generate("late"))
    bench.tokens("c", "d")
    bench.done()
    [end] = bench.of(Finished)
    assert (end.stream, end.usage.completion_tokens) == ("a", 4)
    assert len(bench.of(SessionOver)) == 1


def test_a_closed_session_does_not_wait_for_ever_for_what_it_costs() -> None:
    """An instance that says nothing more: the session is over with its time, billed as far as is known."""
    bench = restored(framed_bytes=2)
    resume(bench, 9, a=-1)
    bench.accept()
    bench.step(Close())
    bench.wait(SessionRules().resume_ttl_s)
    bench.step(Tick())
    assert [e.usage.completion_tokens for e in bench.of(Finished)] == [2]
    assert (len(bench.of(CancelUpstream)), len(bench.of(SessionOver))) == (1, 1)


def test_what_is_heard_again_fills_no_window() -> None:
    """A client that acknowledges nothing more has credit for an end that it knows."""
    bench = running(*"abcdefghijklmnopqrst")
    resume(bench, 21, a=-1)
    assert bench.machine.delivery.free > 0
    bench.step(Close())
    before = bench.credit
    bench.tokens(*"0123456789" * 20)
    assert bench.credit - before >= 190


def test_an_offset_beyond_the_whole_text_is_a_gap() -> None:
    """It is not the text that this client has."""
    bench = restored(framed_bytes=2)
    resume(bench, 9, a=50)
    bench.accept()
    bench.tokens("c")
    bench.done()
    assert [e.code for e in bench.of(ErrorFrame)] == [ErrorCode.RESUME_GAP]
    assert bench.of(Done) == []


def test_accepted_is_told_again_unless_it_surely_was() -> None:
    """A client drops a second one silently; a missing one would keep it waiting."""
    bench = restored(framed_bytes=0)
    bench.machine.streams.live["a"].told_accepted = False
    resume(bench, 0, a=0)
    bench.accept()
    bench.step(Stored(0, 0))
    assert [type(f).__name__ for f in bench.sent()] == ["Resumed", "Accepted"]


def test_unknown_streams_gather_no_more_answers_than_a_client_may_leave_unread() -> None:
    """The connection ends at the bound (4408), and nothing is kept for who has not read what there is."""
    bench = running("a")
    most = bench.machine.rules.log_entries_max
    for attempt in range(3):
        resume(bench, 2, a=1, **{f"lost-{attempt}-{n}": 5 for n in range(most + 60)})
        bench.step(LinkDown())
        assert [e.code for e in bench.of(CloseLink)][attempt:] == [CloseCode.TIMEOUT]
        assert len(bench.machine.delivery.log) <= most + 1 + attempt
