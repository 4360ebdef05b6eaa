"""A token bucket: what it lets through, and that the times it names are exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.bucket import Standing, TokenBucket

START = 1000.0


def test_a_burst_passes_and_then_the_rate() -> None:
    """Three at once, then one each half second."""
    bucket = TokenBucket(2, 3, START)
    assert [bucket.take(1, START) for _ in range(4)] == [0, 0, 0, 500]
    assert bucket.take(1, START + 0.499) == 1
    assert bucket.take(1, START + 0.5) == 0
    assert bucket.take(1, START + 10) == 0
    assert bucket.room(START + 10) == 2


def test_a_refusal_takes_nothing() -> None:
    """Whoever asks again and again does not put off his own time."""
    bucket = TokenBucket(1, 1, START)
    assert bucket.take(1, START) == 0
    assert {bucket.take(1, START + i / 100) for i in range(99)} >= {1000, 990, 20}
    assert bucket.take(1, START + 1) == 0


@given(
    rate=st.floats(0.001, 1e6),
    burst=st.floats(1, 1e6),
    cost=st.integers(1, 1000),
    asks=st.lists(st.floats(0, 100), min_size=1, max_size=20),
)
def test_the_time_that_is_named_is_exact(
    rate: float, burst: float, cost: int, asks: list[float]
) -> None:
    """Who waits exactly that long is let in; who waits a millisecond less is not."""
    now = START
    for pause in asks:
        now += pause
        bucket = TokenBucket(rate, burst, now)
        bucket.spend(int(burst) + cost, now)
        wait_ms = bucket.take(cost, now)
        assert wait_ms > 0
        assert bucket.take(cost, now + (wait_ms - 1) / 1000) > 0
        assert bucket.take(cost, now + wait_ms / 1000) == 0


@given(
    rate=st.integers(1, 1000),
    burst=st.integers(1, 50),
    pauses=st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
def test_never_more_than_burst_and_rate(rate: int, burst: int, pauses: list[float]) -> None:
    """In any time no more passes than a full bucket and what flows in meanwhile."""
    bucket, now, passed = TokenBucket(rate, burst, START), START, 0
    for pause in pauses:
        now += pause
        while bucket.take(1, now) == 0:
            passed += 1
    assert passed <= burst + rate * (now - START) + 1e-3


def test_more_than_a_burst_passes_when_full_and_is_a_debt() -> None:
    """What is larger than the bucket is not refused for ever; the next one waits for it."""
    bucket = TokenBucket(10, 5, START)
    assert bucket.take(20, START) == 0
    assert bucket.room(START) == -15
    assert bucket.take(1, START) == 1600


def test_another_rate_holds_from_now_on() -> None:
    """What has flowed in stays, as far as it fits; what was not used comes back, as far as it fits."""
    bucket = TokenBucket(10, 10, START)
    bucket.spend(10, START)
    bucket.adjust(1, 4, START + 0.5)
    assert bucket.room(START + 0.5) == 4
    assert bucket.take(4, START + 0.5) == 0
    assert bucket.take(1, START + 0.5) == 1000
    bucket.give_back(100, START + 0.5)
    assert bucket.room(START + 0.5) == 4


@pytest.mark.parametrize("back_s", [0.0, 5.0])
def test_time_that_stands_or_runs_back_gives_nothing(back_s: float) -> None:
    """A clock never makes tokens by going back and forth."""
    bucket = TokenBucket(1, 1, START)
    bucket.take(1, START)
    assert bucket.take(1, START - back_s) == 1000
    assert bucket.take(1, START) == 1000


def test_it_says_how_full_it_is() -> None:
    """Whole units that are there, and the time until it is full; a debt is no room."""
    bucket = TokenBucket(2, 3, START)
    assert bucket.standing(START) == Standing(burst=3, room=3, full_in_ms=0)
    bucket.spend(2, START)
    assert bucket.standing(START) == Standing(burst=3, room=1, full_in_ms=1000)
    assert bucket.standing(START + 0.25) == Standing(burst=3, room=1, full_in_ms=750)
    bucket.spend(4, START + 0.25)
    assert bucket.standing(START + 0.25) == Standing(burst=3, room=0, full_in_ms=2750)
