"""The client's half of a session (contract §3, §4)."""

from __future__ import annotations

import pytest

from seedance.protocol import client_events as on
from seedance.protocol.client import ClientState
from seedance.protocol.client_streams import ENDED_MAX, STREAMS_MAX
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import (
    Ack,
    Cancel,
    Checkpoint,
    Close,
    Done,
    ErrorFrame,
    GoAway,
    Ping,
    Pong,
    Resume,
    Usage,
)
from tests.support.client_session import SESSION, Bench, accepted, done, generate, token


def failures(bench: Bench) -> list[tuple[str | None, ErrorCode]]:
    return [(f.id, f.code) for f in bench.delivered if isinstance(f, ErrorFrame)]


def test_a_generation_waits_for_the_session() -> None:
    """A request is sent once the server has greeted, not before, and the first dial is at once."""
    bench = Bench()
    bench.step(on.Submit(generate("a")))
    assert bench.dialled == ["ws://a:1/v2/infer?mode=token"]
    bench.step(on.Opened())
    assert bench.sent == []
    bench.receive(SESSION)
    assert bench.sent == [generate("a")]
    assert bench.machine.state is ClientState.OPEN


def test_frames_are_delivered_once_and_acknowledged() -> None:
    """A frame sent again is not delivered again; eight frames bring one `ack`."""
    bench = Bench()
    bench.begin("a")
    bench.take_sent()
    for seq, char in enumerate("abcdef", 2):
        bench.receive(token("a", seq - 2, char), seq)
        bench.receive(token("a", seq - 2, char), seq)
    assert bench.text("a") == "abcdef"
    assert bench.sent == [Ack(6)]
    bench.receive(done("a"), 8)
    bench.receive(done("a"), 8)
    assert len([f for f in bench.delivered if isinstance(f, Done)]) == 1


def test_a_resume_names_what_was_processed() -> None:
    """After a cut the client says its last number and each stream's bytes, -1 for an end."""
    bench = Bench()
    bench.begin("a", "b", "c")
    bench.receive(token("a", 0, "né"), 4)
    bench.receive(done("c"), 5)
    bench.receive(token("a", 3, "lost above a hole"), 7)
    bench.lose()
    bench.wait()
    bench.take_sent()
    bench.step(on.Opened())
    assert bench.sent == [Resume("s1", "secret", 5, {"a": 3, "b": 0, "c": -1})]
    assert bench.machine.state is ClientState.RESUMING


def test_after_a_resume_the_text_goes_on_at_the_offset() -> None:
    """What was kept above the last number is forgotten, and the new cut of the text counts."""
    bench = Bench()
    bench.begin("a")
    bench.receive(token("a", 0, "one "), 2)
    bench.receive(token("a", 9, "three"), 4)
    bench.lose()
    bench.resume(3)
    bench.receive(token("a", 4, "two three"), 3)
    bench.receive(done("a"), 4)
    assert bench.text("a") == "one two three"


def test_the_provisional_session_of_a_resume_is_ignored() -> None:
    """Every connection is greeted with a session; a resuming client does not take it for its own."""
    bench = Bench()
    bench.begin("a")
    bench.lose()
    bench.wait()
    bench.step(on.Opened())
    bench.receive(SESSION)
    assert bench.machine.state is ClientState.RESUMING


def test_an_unanswered_generation_is_sent_again_with_its_id() -> None:
    """What no text came of is asked for after the resume, accepted or not: its gateway may be gone (§4.4)."""
    bench = Bench()
    bench.begin("a", "d")
    bench.receive(token("d", 0, "x"), 3)
    bench.step(on.Submit(generate("b")))
    bench.lose()
    bench.step(on.Submit(generate("c")))
    bench.take_sent()
    bench.resume(4)
    resume, *again = bench.sent
    assert isinstance(resume, Resume)
    assert resume.offsets == {"a": 0, "d": 1, "b": 0}
    assert again == [generate("a"), generate("b"), generate("c")]


def test_overlapping_text_is_delivered_once() -> None:
    """A delta that begins below what is known gives only its new part."""
    bench = Bench()
    bench.begin("a")
    bench.receive(token("a", 0, "héllo"), 2)
    bench.receive(token("a", 3, "llo w"), 3)
    bench.receive(token("a", 0, "hé"), 4)
    assert bench.text("a") == "héllo w"


@pytest.mark.parametrize(("offset", "delta"), [(9, "far"), (1, "é!")])
def test_a_gap_in_the_text_is_an_error(offset: int, delta: str) -> None:
    """Text that is missing, or cut inside a character, ends the stream with `resume_gap`."""
    bench = Bench()
    bench.begin("a")
    bench.receive(token("a", 0, "hi"), 2)
    bench.receive(token("a", offset, delta), 3)
    assert failures(bench) == [("a", ErrorCode.RESUME_GAP)]
    assert bench.sent[-1] == Cancel("a")
    bench.receive(done("a"), 4)
    assert len(bench.delivered) == 3


@pytest.mark.parametrize("code", [4401, 4403, 4409, 1000, 4400, 1009])
def test_what_will_not_get_better_is_not_tried_again(code: int) -> None:
    """CASES 114: after a refusal, a take-over or our own fault the client reports and rests."""
    bench = Bench()
    bench.begin("a")
    bench.lose(code)
    assert bench.machine.state is ClientState.IDLE
    assert len(failures(bench)) == 1
    assert bench.machine.deadline() is None


@pytest.mark.parametrize("code", [1001, 1006, 1011, 1012, 1013, 4408, 4429])
def test_what_may_get_better_is_tried_again(code: int) -> None:
    """After these close codes the client resumes, and its user sees no error."""
    bench = Bench()
    bench.begin("a")
    bench.lose(code)
    bench.resume(2)
    assert bench.machine.state is ClientState.OPEN
    assert failures(bench) == []


def test_the_servers_words_are_the_error() -> None:
    """The error frame before a close says more than the close code."""
    bench = Bench()
    bench.begin("a")
    bench.receive(ErrorFrame(ErrorCode.QUOTA_EXCEEDED, "no money left", retryable=False))
    bench.lose(4403)
    assert failures(bench) == [("a", ErrorCode.QUOTA_EXCEEDED)]


def test_an_expired_session_keeps_what_it_never_had() -> None:
    """On 4410 accepted streams end with an error; others go to a new session, under their ids."""
    bench = Bench()
    bench.begin("a")
    bench.step(on.Submit(generate("b")))
    bench.lose()
    bench.wait()
    bench.step(on.Opened())
    bench.lose(4410)
    assert failures(bench) == [("a", ErrorCode.SESSION_EXPIRED)]
    bench.wait()
    bench.take_sent()
    bench.step(on.Opened())
    bench.receive(SESSION)
    assert bench.sent == [generate("b")]


def test_no_generation_runs_twice_after_text_came() -> None:
    """CASES 65: a stream that has begun is never asked for again; its loss is reported."""
    bench = Bench()
    bench.begin("a")
    bench.receive(token("a", 0, "x"), 2)
    bench.lose()
    bench.wait()
    bench.step(on.Opened())
    bench.lose(4410)
    assert failures(bench) == [("a", ErrorCode.SESSION_EXPIRED)]
    assert bench.sent.count(generate("a")) == 1
    assert bench.machine.state is ClientState.IDLE


def test_ten_tries_then_an_error() -> None:
    """With no gateway answering, ten tries are made in turn, and then each stream is told."""
    bench = Bench()
    bench.begin("a")
    waits = []
    bench.lose()
    while bench.machine.state is ClientState.CONNECTING:
        waits.append(bench.wait())
        bench.lose()
    assert waits == pytest.approx([0.25, 0.5, 1, 2, 4, 8, 15, 15, 15, 15])
    assert [url[:8] for url in bench.dialled[1:5]] == ["ws://b:2", "ws://a:1"] * 2
    assert failures(bench) == [("a", ErrorCode.UNAVAILABLE)]


def test_a_client_that_gave_up_tries_anew_with_new_work() -> None:
    """Giving up ends what was asked for, not the client."""
    bench = Bench(tries_max=1)
    bench.step(on.Submit(generate("a")))
    bench.lose()
    bench.wait()
    bench.lose()
    assert failures(bench) == [("a", ErrorCode.UNAVAILABLE)]
    bench.begin("b")
    assert bench.machine.state is ClientState.OPEN


def test_a_connection_that_dies_at_once_does_not_reset_the_back_off() -> None:
    """CASES 114: accept-then-drop goes on backing off, even where a little text came before."""
    bench = Bench()
    bench.begin("a")
    waits = []
    for _ in range(3):
        bench.lose()
        waits.append(bench.wait())
        bench.step(on.Opened())
    assert waits == pytest.approx([0.25, 0.5, 1])
    bench.lose()
    bench.resume(2)
    bench.receive(token("a", 0, "x"), 2)
    bench.lose()
    assert bench.wait() == pytest.approx(4)


def test_a_long_life_resets_the_back_off() -> None:
    """A connection that stood five seconds was a good one."""
    bench = Bench()
    bench.begin()
    bench.lose()
    bench.wait()
    bench.step(on.Opened())
    bench.receive(SESSION)
    bench.now += 5
    bench.lose()
    assert bench.wait() == pytest.approx(0.25)


def test_cancel_before_between_and_after() -> None:
    """A cancel is told at once, after the resume, or, where nobody knows the stream, to nobody."""
    bench = Bench()
    bench.begin("a", "b")
    bench.step(on.Abort("a"))
    bench.step(on.Abort("a"))
    assert bench.take_sent()[-1:] == [Cancel("a")]
    bench.lose()
    bench.step(on.Submit(generate("c")))
    bench.step(on.Abort("b"))
    bench.step(on.Abort("c"))
    cancelled = bench.delivered[-1]
    assert isinstance(cancelled, Done)
    assert (cancelled.id, cancelled.finish_reason, cancelled.usage) == ("c", "cancelled", Usage())
    bench.resume(3)
    told = [generate("a"), Cancel("a"), generate("b"), Cancel("b")]
    assert bench.sent[1:] == told
    bench.step(on.Abort("unknown"))
    assert bench.sent[1:] == told


def test_a_refused_generation_ends() -> None:
    """An error that names a stream not accepted yet is its end, with or without usage."""
    bench = Bench()
    bench.begin()
    bench.step(on.Submit(generate("a")))
    bench.receive(ErrorFrame(ErrorCode.MODEL_NOT_FOUND, "no", retryable=False, id="a"), 1)
    bench.receive(accepted("a"), 2)
    assert failures(bench) == [("a", ErrorCode.MODEL_NOT_FOUND)]
    assert len(bench.delivered) == 1


def test_checkpoints_shorten_the_resume() -> None:
    """An end that the store has need not be told; one that only memory has is told."""
    bench = Bench()
    bench.begin("a", "b", "c")
    bench.receive(done("b"), 4)
    bench.receive(done("c"), 5)
    bench.receive(Checkpoint(5, 1, "memory"))
    bench.receive(Checkpoint(4, 1))
    bench.lose()
    bench.wait()
    bench.step(on.Opened())
    assert bench.sent[-1] == Resume("s1", "secret", 5, {"a": 0, "c": -1})


def test_a_reader_who_is_behind_stops_the_acknowledgements() -> None:
    """No `ack` leaves while a buffer is full; pings are answered; then one `ack` says it all."""
    bench = Bench()
    bench.begin("a")
    bench.take_sent()
    bench.step(on.Reading("a", behind=True))
    for seq in range(2, 20):
        bench.receive(token("a", seq - 2, "x"), seq)
    bench.receive(Ping(7))
    assert bench.take_sent() == [Pong(7)]
    bench.step(on.Reading("a", behind=False))
    assert bench.sent == [Ack(20)]


def test_silence_is_asked_about_and_then_ends_the_connection() -> None:
    """A server that says nothing is pinged after a third of the session's time, left after it."""
    bench = Bench()
    bench.begin("a")
    bench.wait()
    bench.take_sent()
    assert bench.wait() == pytest.approx(4.95)
    assert bench.sent == [Ping(105_000)]
    assert bench.wait() == pytest.approx(10)
    assert bench.hangups == [1001]
    assert bench.machine.state is ClientState.CONNECTING


def test_a_socket_without_a_greeting_is_left() -> None:
    """A server that accepts and says nothing at all is not waited for."""
    bench = Bench()
    bench.step(on.Connect())
    bench.step(on.Opened())
    assert bench.wait() == pytest.approx(10)
    assert bench.hangups == [1001]


def test_a_draining_gateway_is_left_within_its_time() -> None:
    """On `goaway` the client resumes at the next gateway, at a moment of its own."""
    bench = Bench()
    bench.begin("a")
    bench.wait()
    bench.receive(GoAway("drain", 2000))
    assert bench.wait() == pytest.approx(1)
    assert bench.hangups == [1001]
    bench.resume(2)
    assert bench.dialled[-1] == "ws://b:2/v2/infer?mode=token"


def test_closing_ends_the_session_and_its_streams() -> None:
    """`close` is said to the server, streams are told, and no more work is taken."""
    bench = Bench()
    bench.begin("a")
    bench.step(on.Shut())
    assert bench.sent[-1] == Close()
    assert bench.hangups == [1000]
    assert failures(bench) == [("a", ErrorCode.UNAVAILABLE)]
    with pytest.raises(SeedanceError, match="closed"):
        bench.step(on.Submit(generate("b")))


def test_an_idle_client_begins_a_new_session_after_a_loss() -> None:
    """With nothing running and every end in the store there is nothing to resume."""
    bench = Bench()
    bench.begin("a")
    bench.receive(done("a"), 2)
    bench.receive(Checkpoint(2, 1, "committed"))
    bench.lose()
    bench.wait()
    bench.take_sent()
    bench.step(on.Opened())
    bench.receive(SESSION)
    assert bench.sent == []
    assert bench.machine.state is ClientState.OPEN


def test_bounds_of_what_is_remembered() -> None:
    """One generation over the bound is refused; of ended ids only the latest are kept."""
    bench = Bench()
    bench.step(on.Connect())
    for number in range(STREAMS_MAX):
        bench.step(on.Submit(generate(str(number))))
    with pytest.raises(SeedanceError) as caught:
        bench.step(on.Submit(generate("one more")))
    assert caught.value.code is ErrorCode.OVERLOADED
    assert str(STREAMS_MAX) in caught.value.message
    bench.step(on.Opened())
    bench.receive(SESSION)
    for number in range(STREAMS_MAX):
        bench.receive(done(str(number)), number + 1)
    bench.step(on.Submit(generate("next")))
    bench.receive(done("next"), STREAMS_MAX + 1)
    bench.step(on.Submit(generate("live")))
    bench.lose()
    bench.wait()
    bench.step(on.Opened())
    resume = bench.sent[-1]
    assert isinstance(resume, Resume)
    assert len(resume.offsets) == ENDED_MAX + 1
    assert "0" not in resume.offsets
