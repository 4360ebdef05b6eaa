"""One instance's breaker: what opens it, what closes it, and what never does."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gateway.upstream.breaker import (
    BACKOFF_MAX_S,
    BACKOFF_MIN_S,
    MARGIN_S,
    PROBE_EVERY,
    SAMPLES_MAX,
    SAMPLES_MIN,
    STEADY_S,
    SUSPECTS_IN_A_ROW,
    Breaker,
    BreakerState,
)

QUICK, SLOW = 0.001, 0.5
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class _Bench:
    """A breaker that is pinged once a second."""

    def __init__(self, jitter: float = 1.0) -> None:
        self.changes: list[BreakerState] = []
        self.breaker = Breaker(lambda: jitter, self.changes.append)
        self.now = 1000.0

    @property
    def state(self) -> BreakerState:
        return self.breaker.state

    def ping(self, rtts: Iterable[float | None]) -> None:
        for rtt_s in rtts:
            self.now += 1.0
            self.breaker.sample(rtt_s, self.now)

    def warm(self) -> None:
        self.ping([QUICK] * SAMPLES_MAX)

    def broken(self) -> None:
        self.breaker.broken(self.now)


@pytest.fixture
def bench() -> _Bench:
    warm = _Bench()
    warm.warm()
    return warm


def test_three_suspects_in_a_row_open_it(bench: _Bench) -> None:
    """Two late answers are nothing, a good one begins a new count, three in a row open it."""
    bench.ping([SLOW, SLOW, QUICK, SLOW, SLOW])
    assert bench.state is CLOSED
    bench.ping([SLOW])
    assert bench.state is OPEN


@pytest.mark.parametrize(("rtt_s", "opens"), [(QUICK + MARGIN_S - 1e-6, False), (0.0215, True)])
def test_small_differences_are_no_suspicion(bench: _Bench, rtt_s: float, opens: bool) -> None:
    """A steady link is not suspect within 20 ms of its mean, however little it varied."""
    bench.ping([rtt_s] * SUSPECTS_IN_A_ROW)
    assert (bench.state is OPEN) is opens


def test_a_link_that_varies_is_given_three_sigmas() -> None:
    """Mean 100 ms, sigma 50 ms: 240 ms is ordinary, 260 ms is not."""
    bench = _Bench()
    bench.ping([0.05, 0.15] * (SAMPLES_MAX // 2))
    bench.ping([0.24] * 2)
    assert bench.state is CLOSED
    bench = _Bench()
    bench.ping([0.05, 0.15] * (SAMPLES_MAX // 2))
    bench.ping([0.26] * SUSPECTS_IN_A_ROW)
    assert bench.state is OPEN


def test_silence_is_suspect_at_once() -> None:
    """Unanswered pings need nothing to be compared with; late ones need a few samples first."""
    bench = _Bench()
    bench.ping([QUICK] * (SAMPLES_MIN - 1) + [SLOW])
    bench.ping([None] * SUSPECTS_IN_A_ROW)
    assert bench.changes == [OPEN]


def test_a_broken_call_opens_it_at_once(bench: _Bench) -> None:
    """One is enough: whoever is behind it may be gone."""
    bench.broken()
    assert bench.state is OPEN


def test_it_recovers_by_way_of_half_open(bench: _Bench) -> None:
    """An answered ping after the back-off admits probes, another good one everybody."""
    bench.broken()
    bench.breaker.sample(QUICK, bench.now + BACKOFF_MIN_S - 0.01)
    assert bench.state is OPEN
    bench.ping([QUICK])
    assert bench.state is HALF_OPEN
    bench.ping([QUICK])
    assert bench.changes == [OPEN, HALF_OPEN, CLOSED]


def test_half_open_admits_one_in_a_hundred_and_the_first(bench: _Bench) -> None:
    """1 % of the streams that would go there, and never none."""
    bench.broken()
    bench.ping([QUICK])
    taken = [bench.breaker.take_probe() for _ in range(3 * PROBE_EVERY)]
    assert taken[0]
    assert sum(taken) == 3


def test_a_silent_instance_stays_out(bench: _Bench) -> None:
    """However long: without an answer no stream is spent on it."""
    bench.ping([None] * 100)
    assert bench.changes == [OPEN]


def test_the_backoff_doubles_and_begins_anew_after_steadiness(bench: _Bench) -> None:
    """Half a second at first, thirty at most; closed for ten seconds, it is forgotten."""
    waits = []
    for _ in range(9):
        bench.broken()
        waited = 0.0
        while bench.state is OPEN:
            waited += 0.25
            bench.breaker.sample(QUICK, bench.now + waited)
        waits.append(waited)
        bench.now += waited
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    bench.ping([QUICK] * int(STEADY_S + 2))
    bench.broken()
    bench.breaker.sample(QUICK, bench.now + BACKOFF_MIN_S)
    assert bench.state is HALF_OPEN


def test_jitter_takes_at_most_half_of_the_wait() -> None:
    """Gateways that saw the same break come back spread over the upper half of the back-off."""
    bench = _Bench(jitter=0.0)
    bench.warm()
    bench.broken()
    bench.breaker.sample(QUICK, bench.now + BACKOFF_MIN_S / 2)
    assert bench.state is HALF_OPEN


def test_a_far_instance_is_learned(bench: _Bench) -> None:
    """One that answers, but late, for as long as the back-off can grow is used at its new pace."""
    bench.ping([SLOW] * int(BACKOFF_MAX_S))
    assert CLOSED not in bench.changes
    bench.ping([SLOW] * 100)
    assert bench.state is CLOSED
    closed = bench.changes.index(CLOSED)
    assert bench.changes[:closed].count(OPEN) > 1
    bench.ping([SLOW] * 20)
    assert bench.changes[closed:] == [CLOSED]
