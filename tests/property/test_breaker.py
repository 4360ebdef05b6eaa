"""What holds of a breaker whatever an instance does."""

from __future__ import annotations

from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.breaker import (
    BACKOFF_MAX_S,
    BACKOFF_MIN_S,
    MARGIN_S,
    SAMPLES_MAX,
    SAMPLES_MIN,
    SUSPECTS_IN_A_ROW,
    Breaker,
    BreakerState,
)

PINGS = st.one_of(st.none(), st.floats(0.0001, 1.0))
EVENTS = st.lists(st.tuples(st.sampled_from(["ping", "broken"]), PINGS), max_size=200)


def _play(events: list[tuple[str, float | None]], jitter: float) -> tuple[Breaker, float]:
    """Play a second for each event, and check each change of state by the table of the contract."""
    changes: list[BreakerState] = []
    breaker = Breaker(lambda: jitter, changes.append)
    now = opened_at = 0.0
    for kind, rtt_s in events:
        before = breaker.state
        now += 1.0
        if kind == "ping":
            breaker.sample(rtt_s, now)
        else:
            breaker.broken(now)
            assert breaker.state is BreakerState.OPEN
        after = breaker.state
        assert (before, after) != (BreakerState.CLOSED, BreakerState.HALF_OPEN)
        assert (before, after) != (BreakerState.OPEN, BreakerState.CLOSED)
        if (before, after) == (BreakerState.OPEN, BreakerState.HALF_OPEN):
            assert rtt_s is not None, "only an answer lets probes through"
            assert now - opened_at >= BACKOFF_MIN_S / 2
        if after is BreakerState.OPEN and (before is not after or kind == "broken"):
            opened_at = now
    return breaker, now


@given(EVENTS, st.floats(0, 0.999))
def test_states_follow_the_table(events: list[tuple[str, float | None]], jitter: float) -> None:
    """No state is skipped, broken calls always open, only answers half-open, not before a back-off."""
    _play(events, jitter)


@given(EVENTS, st.floats(0, 0.999), st.floats(0.0001, 1.0))
def test_who_answers_steadily_is_used_again(
    events: list[tuple[str, float | None]], jitter: float, pace_s: float
) -> None:
    """Whatever was before: answers of one pace close it for good, within a few longest back-offs."""
    breaker, now = _play(events, jitter)
    for _ in range(int(8 * BACKOFF_MAX_S) + SAMPLES_MAX):
        now += 1.0
        breaker.sample(pace_s, now)
    for _ in range(SAMPLES_MAX):
        now += 1.0
        breaker.sample(pace_s, now)
        assert breaker.state is BreakerState.CLOSED


@given(EVENTS, st.floats(0, 0.999))
def test_who_falls_silent_is_left(events: list[tuple[str, float | None]], jitter: float) -> None:
    """Whatever was before: three pings without an answer, and no stream goes there any more."""
    breaker, now = _play(events, jitter)
    for _ in range(SUSPECTS_IN_A_ROW):
        now += 1.0
        breaker.sample(None, now)
    assert breaker.state is BreakerState.OPEN


@given(
    st.lists(st.floats(1e-6, 5e-4), min_size=SAMPLES_MAX, max_size=SAMPLES_MAX),
    st.lists(st.floats(0, MARGIN_S), max_size=100),
)
def test_quick_round_trips_have_a_margin(steady: list[float], later: list[float]) -> None:
    """However little they vary: nothing within 20 ms of their mean is suspect, in whatever order."""
    changes: list[BreakerState] = []
    breaker = Breaker(lambda: 0.0, changes.append)
    for second, rtt_s in enumerate(steady):
        breaker.sample(rtt_s, float(second))
    for second, rtt_s in enumerate(later, start=len(steady)):
        assert rtt_s <= breaker.suspect_above_s
        breaker.sample(rtt_s, float(second))
    assert changes == []


@given(st.lists(st.floats(1e-6, 1.0), min_size=SAMPLES_MIN, max_size=SAMPLES_MAX))
def test_what_is_suspect(samples: list[float]) -> None:
    """Above max(mean + 3 sigma, mean + 20 ms) of the samples, and not below."""
    breaker = Breaker(lambda: 0.0, lambda _: None)
    breaker._samples.extend(samples)
    mean = fmean(samples)
    bound = max(mean + 3 * pstdev(samples), mean + 0.020)
    assert breaker.suspect_above_s == pytest.approx(bound)
