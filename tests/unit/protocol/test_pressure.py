"""When a client hears that less is asked for (§3 `pressure`)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from seedance.protocol.events import FromInstance, Pump, Tick, UpstreamBroken, UpstreamPressure
from seedance.protocol.frames import Ack, Cancel, Ping, PressureFrame
from seedance.protocol.pressure import (
    FALL_AFTER_S,
    FREE,
    Pressed,
    PressureLevel,
    PressurePacer,
    highest,
)
from tests.support.server_session import Bench

THROTTLED: Pressed = (PressureLevel.THROTTLE, "the queue is half full")
PAUSED: Pressed = (PressureLevel.PAUSE, "the queue is full")
RANK = {"none": 0, "throttle": 1, "pause": 2}
# What sums of binary fractions may lack.
ROUNDING_S = 1e-9


def _levels(bench: Bench) -> list[str]:
    return [frame.level for frame in bench.of(PressureFrame)]


def _press(bench: Bench, pressed: Pressed, stream: str = "a") -> None:
    bench.step(FromInstance(stream, UpstreamPressure(*pressed)))


def test_the_highest_counts() -> None:
    """Of several the highest, with its reason; of none, none."""
    assert highest(FREE, PAUSED, THROTTLED) == PAUSED
    assert highest(THROTTLED, FREE) == THROTTLED
    assert highest() == FREE


def test_a_rise_waits_for_nothing_a_fall_for_a_second() -> None:
    """Told at once when it grows; when it falls, not within a second of the last word."""
    pacer = PressurePacer()
    assert pacer.take(THROTTLED, 10.0) == PressureFrame("throttle", "the queue is half full")
    assert pacer.take(PAUSED, 10.001) == PressureFrame("pause", "the queue is full")
    assert pacer.take(PAUSED, 10.002) is None
    assert pacer.take(FREE, 10.5) is None
    assert pacer.deadline == 10.001 + FALL_AFTER_S
    assert pacer.take(FREE, 11.1) == PressureFrame("none", "")
    assert pacer.deadline is None


@given(st.lists(st.tuples(st.floats(0, 0.5), st.sampled_from([FREE, THROTTLED, PAUSED]))))
def test_the_rate_is_bounded(changes: list[tuple[float, Pressed]]) -> None:
    """However an instance wavers, a client hears at most three frames in a second, never one twice."""
    pacer, now = PressurePacer(), 0.0
    told: list[tuple[float, str]] = [(0.0, "none")]
    for wait_s, pressed in changes:
        now += wait_s
        frame = pacer.take(pressed, now)
        if frame is not None:
            told.append((now, frame.level))
        assert frame is not None or RANK[told[-1][1]] >= RANK[pressed[0].value]
    for (before, old), (after, new) in pairwise(told):
        assert old != new
        assert RANK[new] > RANK[old] or after - before >= FALL_AFTER_S - ROUNDING_S
    for at, _ in told:
        assert sum(at <= other < at + FALL_AFTER_S for other, _ in told) <= 3


def test_an_instance_is_passed_on_in_the_same_step() -> None:
    """What an instance asks for leaves with the event that brought it, not with the next pump."""
    bench = Bench()
    bench.open()
    _press(bench, THROTTLED)
    assert bench.of(PressureFrame) == [PressureFrame("throttle", "the queue is half full")]
    _press(bench, THROTTLED)
    assert len(bench.of(PressureFrame)) == 1


def test_the_session_has_the_highest_of_its_streams() -> None:
    """One pressed instance is enough, and its stream's end takes the pressure along."""
    bench = Bench()
    bench.open("a")
    bench.open("b")
    _press(bench, PAUSED, "a")
    _press(bench, THROTTLED, "b")
    bench.step(Cancel("a"))
    bench.wait(FALL_AFTER_S)
    bench.step(Tick())
    bench.step(FromInstance("b", UpstreamPressure(*FREE)))
    bench.wait(FALL_AFTER_S)
    assert bench.machine.deadline(bench.now) is not None
    bench.step(Tick())
    assert _levels(bench) == ["pause", "throttle", "none"]


def test_a_lost_instance_presses_no_more() -> None:
    """Its stream goes on elsewhere, where nobody has asked for less yet."""
    bench = Bench()
    bench.open()
    _press(bench, PAUSED)
    bench.step(FromInstance("a", UpstreamBroken()))
    bench.wait(FALL_AFTER_S)
    bench.step(Tick())
    assert _levels(bench) == ["pause", "none"]


def test_a_full_window_throttles_and_a_stall_pauses() -> None:
    """The client's own reading is told too: a full window, and eight seconds without an `ack`."""
    bench = Bench()
    bench.open()
    bench.tokens(*["x"] * 40)
    assert _levels(bench) == []  # they left as one frame
    for _ in range(40):
        bench.tokens("x")
    assert _levels(bench) == ["throttle"]
    bench.wait(bench.machine.rules.heartbeat.stream)
    bench.step(Tick())
    assert _levels(bench) == ["throttle", "pause"]
    bench.step(Ack(bench.machine.delivery.log.next_seq))
    bench.wait(FALL_AFTER_S)
    bench.step(Tick())
    assert _levels(bench)[-1] == "none"


def test_a_simple_client_hears_of_instances() -> None:
    """It has no window, but the instance's word concerns it like anybody, and its end in time too."""
    bench = Bench(windowed=False)
    bench.open()
    _press(bench, PAUSED)
    _press(bench, FREE)
    bench.step(Pump())
    assert bench.machine.deadline(bench.now) == bench.now + FALL_AFTER_S
    bench.wait(FALL_AFTER_S)
    bench.step(Tick())
    assert _levels(bench) == ["pause", "none"]


def test_a_stall_holds_until_an_ack_moves() -> None:
    """With the window half free too: other events between do not make the level waver."""
    bench = Bench()
    bench.open()
    bench.tokens("x")
    bench.wait(bench.machine.rules.heartbeat.stream)
    bench.step(Tick())
    assert _levels(bench) == ["pause"]
    for _ in range(3):
        bench.wait(FALL_AFTER_S)
        bench.step(Ping(1))
        bench.step(Pump())
    assert _levels(bench) == ["pause"]
    bench.step(Ack(bench.machine.delivery.log.next_seq))
    assert _levels(bench) == ["pause", "none"]
