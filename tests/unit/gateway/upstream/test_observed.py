"""What is learnt of an instance by listening."""

from __future__ import annotations

import pytest

from gateway.upstream.base import PressureLevel, UpstreamAccepted, UpstreamTokens
from gateway.upstream.breaker import Breaker
from gateway.upstream.ejection import FAILURES_IN_A_ROW
from gateway.upstream.member import Member
from gateway.upstream.observed import Observed
from mesh.canary import Tally
from mesh.membership import Instance
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Timing, Usage
from tests.support.clock import FakeClock
from tests.support.recording_listener import RecordingListener

TOKENS = UpstreamTokens((1,), 0, b"x", 0, 0)


def _member(**fields: bool) -> Member:
    return Member(Instance("i0", "h:1", **fields), Breaker(lambda: 0.0, lambda _: None))


def _observed(first_token: bool = True) -> tuple[Observed, RecordingListener, Tally, FakeClock]:
    listener, tally, clock = RecordingListener(), Tally(), FakeClock()
    observed = Observed(listener, _member(), tally, clock, first_token=first_token)
    return observed, listener, tally, clock


def test_everything_is_passed_on() -> None:
    """The owner hears what it would have heard."""
    observed, listener, _, _ = _observed()
    observed.on_accepted(UpstreamAccepted("i0", "m", 1, 1, 1, 0))
    observed.on_tokens(TOKENS)
    observed.on_tokens(TOKENS)
    observed.on_pressure(PressureLevel.PAUSE, "full")
    observed.on_done("stop", Usage(), Timing())
    assert listener.heard == ["accepted", "tokens", "tokens", "done"]
    assert listener.pressures == [(PressureLevel.PAUSE, "full")]


def test_a_token_costs_nothing_after_the_first() -> None:
    """The first one is timed; from then on the owner's own method is called."""
    observed, listener, tally, clock = _observed()
    clock.advance(0.5)
    observed.on_tokens(TOKENS)
    assert sum(tally.first_tokens) == 1
    assert tally.first_tokens.index(1) == 71  # 0.5 s lies in the 72nd eighth of an octave over 1 ms
    assert observed.on_tokens == listener.on_tokens


def test_a_continuations_first_token_says_nothing() -> None:
    """Its prompt was computed elsewhere."""
    observed, _, tally, _ = _observed(first_token=False)
    observed.on_tokens(TOKENS)
    assert sum(tally.first_tokens) == 0


@pytest.mark.parametrize(
    ("code", "failed"),
    [
        (ErrorCode.INTERNAL, 1),
        (ErrorCode.UNAVAILABLE, 1),
        (ErrorCode.OVERLOADED, 0),
        (ErrorCode.BAD_REQUEST, 0),
        (ErrorCode.CONTEXT_LENGTH_EXCEEDED, 0),
    ],
)
def test_only_its_own_faults_count(code: ErrorCode, failed: int) -> None:
    """A bad request and a full queue speak against nobody."""
    observed, listener, tally, _ = _observed()
    observed.on_error(SeedanceError(code, "no"), None)
    assert (tally.ended, tally.failed) == (1, failed)
    assert listener.heard == ["error"]


def test_a_broken_call_counts_against_a_canary() -> None:
    """And is left to the breaker otherwise."""
    listener, tally, clock, member = RecordingListener(), Tally(), FakeClock(), _member()
    for _ in range(FAILURES_IN_A_ROW):
        Observed(listener, member, tally, clock, first_token=True).on_broken()
    assert (tally.ended, tally.failed) == (FAILURES_IN_A_ROW, FAILURES_IN_A_ROW)
    assert not member.ejection.out(clock.monotonic())


def test_failures_in_a_row_eject() -> None:
    """An instance whose model fails everything is an outlier."""
    listener, tally, clock, member = RecordingListener(), Tally(), FakeClock(), _member()
    for _ in range(FAILURES_IN_A_ROW):
        observed = Observed(listener, member, tally, clock, first_token=True)
        observed.on_error(SeedanceError(ErrorCode.INTERNAL, "no"), None)
    assert member.ejection.out(clock.monotonic())


def test_who_drains_is_not_at_fault() -> None:
    """Streams that leave it, and openings that it refuses, count against no canary."""
    listener, tally, clock, member = (
        RecordingListener(),
        Tally(),
        FakeClock(),
        _member(draining=True),
    )
    for _ in range(FAILURES_IN_A_ROW):
        observed = Observed(listener, member, tally, clock, first_token=True)
        observed.on_error(SeedanceError(ErrorCode.UNAVAILABLE, "leaving"), None)
        Observed(listener, member, tally, clock, first_token=True).on_broken()
    assert (tally.ended, tally.failed) == (2 * FAILURES_IN_A_ROW, 0)
    assert not member.ejection.out(clock.monotonic())
