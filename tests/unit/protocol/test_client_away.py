"""A client whose mesh was away: what waits, and what a connection has to prove (contract §3)."""

from __future__ import annotations

from seedance.protocol import client_events as on
from seedance.protocol.client_streams import LIVE_MAX
from seedance.protocol.errors import CloseCode
from seedance.protocol.frames import (
    Ack,
    Cancel,
    Generate,
    Ping,
    Pong,
    PressureFrame,
    Resume,
    Resumed,
)
from seedance.protocol.reconnect import HEARTBEATS
from tests.support.client_session import SESSION, Bench, accepted, done, generate, token


def _away(bench: Bench) -> None:
    """The connection is lost and three connects fail; the next dial is under way."""
    bench.lose()
    for _ in range(3):
        bench.wait()
        bench.lose()
    bench.wait()


def _heartbeats(bench: Bench) -> None:
    for _ in range(HEARTBEATS):
        ping = bench.sent[-1]
        assert isinstance(ping, Ping)
        bench.receive(Pong(ping.t))


def test_after_three_failed_connects_a_connection_proves_itself() -> None:
    """Half-open, what runs is resumed, and what is new waits for five heartbeats."""
    bench = Bench()
    bench.begin("a")
    _away(bench)
    bench.step(on.Submit(generate("b")))
    bench.take_sent()
    bench.step(on.Opened())
    bench.receive(Resumed(2, SESSION))
    bench.receive(token("a", 0, "x"), 2)
    bench.step(on.Submit(generate("c")))
    assert bench.text("a") == "x"
    assert generate("b") not in bench.sent
    _heartbeats(bench)
    assert bench.sent[-2:] == [generate("b"), generate("c")]
    bench.step(on.Submit(generate("d")))
    assert bench.sent[-1] == generate("d")


def test_a_connection_lost_on_probation_begins_it_again() -> None:
    """Four heartbeats are not five: the next connection has to give them all."""
    bench = Bench()
    bench.begin("a")
    _away(bench)
    bench.step(on.Opened())
    bench.receive(Resumed(2, SESSION))
    for _ in range(HEARTBEATS - 1):
        bench.receive(Pong(1))
    bench.lose()
    bench.step(on.Submit(generate("b")))
    bench.resume(2)
    assert generate("b") not in bench.sent
    _heartbeats(bench)
    assert bench.sent[-1] == generate("b")


def test_what_is_cancelled_on_probation_is_not_told_as_unknown() -> None:
    """The server may not have heard of it yet: first what was asked, then that it is not wanted."""
    bench = Bench()
    bench.begin("a")
    bench.step(on.Submit(generate("b")))
    _away(bench)
    bench.take_sent()
    bench.step(on.Opened())
    bench.receive(Resumed(2, SESSION))
    bench.step(on.Abort("b"))
    assert Cancel("b") not in bench.sent
    _heartbeats(bench)
    assert bench.sent[-2:] == [generate("b"), Cancel("b")]


def test_what_was_asked_while_away_is_asked_in_order() -> None:
    """Each under its id, once, as many at a time as a session may have live; none is dropped."""
    bench = Bench()
    names = [f"s{n}" for n in range(3 * LIVE_MAX)]
    for name in names:
        bench.step(on.Submit(generate(name)))
    bench.step(on.Opened())
    bench.receive(SESSION)
    assert bench.sent == [generate(name) for name in names[:LIVE_MAX]]
    seq = 0
    for name in names:
        for frame in (accepted(name), done(name)):
            seq += 1
            bench.receive(frame, seq)
    asked = [frame for frame in bench.sent if isinstance(frame, Generate)]
    assert asked == [generate(name) for name in names]


def test_pressure_is_the_connections() -> None:
    """What the server said last, and nothing once that connection is gone."""
    bench = Bench()
    bench.begin("a")
    bench.receive(PressureFrame("pause", "the queue is full"))
    assert bench.machine.pressure == PressureFrame("pause", "the queue is full")
    bench.lose()
    assert bench.machine.pressure.level == "none"


def test_an_end_that_no_checkpoint_covers_is_told() -> None:
    """The gateway may have died before its last commit: a resume makes the bill exact (§4.9)."""
    bench = Bench()
    bench.begin("a")
    bench.receive(done("a"), 2)
    bench.lose()
    bench.wait()
    bench.take_sent()
    bench.step(on.Opened())
    told = Resume("s1", "secret", 2, {"a": -1})
    assert bench.sent == [told]
    bench.lose(CloseCode.TRY_AGAIN_LATER)
    bench.wait()
    bench.step(on.Opened())
    assert bench.sent == [told, told]


def test_a_bill_keeps_nobody_waiting() -> None:
    """Where only an end was to be told and the answer is "not now", what is asked meanwhile goes first."""
    bench = Bench()
    bench.begin("a")
    bench.receive(done("a"), 2)
    bench.lose()
    bench.wait()
    bench.step(on.Opened())
    bench.step(on.Submit(generate("b")))
    bench.lose(CloseCode.TRY_AGAIN_LATER)
    bench.wait()
    bench.take_sent()
    bench.step(on.Opened())
    bench.receive(SESSION)
    assert bench.sent == [generate("b")]


def test_a_reader_who_is_behind_with_an_ended_stream_holds_nobody_up() -> None:
    """Its end came while its buffer was full, and it never reads on: the others are acknowledged."""
    bench = Bench()
    bench.begin("a", "b")
    bench.take_sent()
    bench.receive(done("a"), 3)
    bench.step(on.Reading("a", behind=True))
    for seq in range(4, 12):
        bench.receive(token("b", seq - 4, "x"), seq)
    assert bench.take_sent() == [Ack(9)]
