"""The time to the first text, as the client's own gateway measures it."""

from __future__ import annotations

import pytest

from seedance.protocol.events import FromInstance, Pump, UpstreamDone
from seedance.protocol.frames import Done, Timing, Usage
from seedance.protocol.stopwatch import Stopwatch
from tests.support.server_session import Bench

TOLD = Timing(
    queue_ms=1,
    preprocess_ms=2,
    prefill_ms=30,
    first_decode_ms=4,
    cache_sync_ms=5,
    egress_ms=0.5,
    ttft_ms=42.5,
    total_ms=90,
)


def _parts(timing: Timing) -> float:
    return (
        timing.queue_ms
        + timing.preprocess_ms
        + timing.prefill_ms
        + timing.first_decode_ms
        + timing.cache_sync_ms
        + timing.egress_ms
    )


def test_egress_is_what_the_instance_did_not_see() -> None:
    """The six parts make the gateway's own time to its first frame."""
    watch = Stopwatch(asked=10.0)
    watch.frame(10.060)
    watch.frame(10.070)
    timing = watch.timing(TOLD, 10.2)
    assert timing.egress_ms == pytest.approx(18)
    assert timing.ttft_ms == pytest.approx(60)
    assert timing.total_ms == pytest.approx(200)
    assert _parts(timing) == pytest.approx(timing.ttft_ms)
    assert (timing.prefill_ms, timing.queue_ms) == (30, 1)


def test_parts_of_a_later_instance_are_not_those_of_the_first_text() -> None:
    """After a migration they may be longer than all that passed: none is told rather than a wrong one."""
    watch = Stopwatch(asked=10.0)
    watch.frame(10.020)
    timing = watch.timing(TOLD, 12.0)
    assert timing == Timing(egress_ms=timing.ttft_ms, ttft_ms=timing.ttft_ms, total_ms=2000)
    assert timing.ttft_ms == pytest.approx(20)


def test_who_did_not_hear_the_request_passes_on_what_was_told() -> None:
    """A stream taken over from another gateway was begun on that one's clock."""
    watch = Stopwatch()
    watch.frame(5.0)
    assert watch.timing(TOLD, 6.0) == TOLD


def _done(bench: Bench) -> Timing:
    bench.step(FromInstance("a", UpstreamDone("stop", Usage(7, 2, 99), TOLD)))
    bench.step(Pump())
    (done,) = bench.of(Done)
    return done.timing


def test_a_stream_is_timed_from_its_request_to_its_first_frame() -> None:
    """Not to what came after it, and not to the end."""
    bench = Bench()
    bench.open()
    bench.wait(0.050)
    bench.tokens("x")
    bench.wait(0.100)
    bench.tokens("y")
    timing = _done(bench)
    assert timing.ttft_ms == pytest.approx(50)
    assert timing.total_ms == pytest.approx(150)
    assert _parts(timing) == pytest.approx(50)


def test_a_text_in_one_piece_leaves_with_its_end() -> None:
    """With `stream: false` nothing was there before."""
    bench = Bench()
    bench.open(stream=False)
    bench.wait(0.050)
    bench.tokens("x")
    bench.wait(0.100)
    timing = _done(bench)
    assert timing.ttft_ms == timing.total_ms == pytest.approx(150)
    assert _parts(timing) == pytest.approx(150)
