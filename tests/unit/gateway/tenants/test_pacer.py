"""A tenant's pace: credit in turns, never more than the rate, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.bucket import TokenBucket
from gateway.tenants.pacer import AHEAD_MAX, GATHER_S, LOOK_AGAIN_S, CreditPacer

START = 1000.0


def pacer(rate: float = 10, burst: float = 10, text: float | None = None) -> CreditPacer[str]:
    made: CreditPacer[str] = CreditPacer()
    made.tokens = TokenBucket(rate, burst, START)
    made.bytes = None if text is None else TokenBucket(text, text, START)
    return made


def test_a_new_stream_has_one_token_and_the_rest_in_turns() -> None:
    """Even over the rate a prompt is worked on; the bucket is shared evenly."""
    paced = pacer(10, 10)
    for name in "abc":
        assert paced.enter(name, START) == 1
        paced.want(name, 31)
    assert paced.give(START) == [("a", 3), ("b", 2), ("c", 2)]
    assert paced.give(START) == []
    assert paced.wait_s(START) == pytest.approx(0.1)
    assert paced.give(START + 0.1) == [("a", 1)]
    assert paced.give(START + 0.2) == [("b", 1)]
    assert paced.give(START + 0.3) == [("c", 1)]


def test_what_was_not_used_comes_back() -> None:
    """A stream that ends gives back the credit that it did not need, so the count is of tokens made."""
    paced = pacer(10, 10)
    paced.enter("a", START)
    paced.want("a", 9)
    assert paced.give(START) == [("a", 9)]
    paced.made("a", 4, 0, START)
    paced.leave("a", START)
    assert paced.tokens is not None
    assert paced.tokens.room(START) == 6
    paced.leave("a", START)
    assert paced.wait_s(START) is None


def test_who_wants_no_bound_is_never_far_ahead() -> None:
    """An answer in one piece has all the credit it wants, a window's worth at a time."""
    paced = pacer(1e6, 1e6)
    paced.enter("a", START)
    paced.want("a", 2**31)
    assert paced.give(START) == [("a", AHEAD_MAX - 1)]
    assert paced.give(START) == []
    paced.made("a", 100, 0, START)
    assert paced.give(START) == [("a", 100)]


def test_text_in_debt_stops_everybody_for_a_while() -> None:
    """Bytes are charged as they come; nobody is given more until they have flowed in."""
    paced = pacer(1e6, 1e6, text=100)
    paced.enter("a", START)
    paced.want("a", 50)
    paced.made("a", 1, 150, START)
    assert paced.give(START) == []
    assert paced.wait_s(START) == pytest.approx(0.5)
    assert paced.give(START + 0.499) == []
    assert paced.give(START + 0.5) == [("a", 50)]


def test_a_fast_tenant_is_given_portions() -> None:
    """Not a message for each token: what flows in meanwhile is given together."""
    paced = pacer(10_000, 1)
    paced.enter("a", START)
    paced.want("a", 100)
    assert paced.wait_s(START) == GATHER_S


@given(
    rate=st.integers(1, 500),
    asks=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 64)), min_size=1, max_size=30),
    pauses=st.lists(st.floats(0, 0.5), min_size=1, max_size=30),
)
def test_the_rate_is_kept_and_all_that_is_wanted_comes(
    rate: int, asks: list[tuple[str, int]], pauses: list[float]
) -> None:
    """Streams together are given no more than burst and rate, and in the end all they asked for."""
    paced, now = pacer(rate, 1), START
    for name in "abc":
        paced.enter(name, now)
    wanted, given_total = dict.fromkeys("abc", 0), 3
    for (name, tokens), pause in zip(asks, pauses, strict=False):
        paced.want(name, tokens)
        wanted[name] += tokens
        now += pause
        for who, count in paced.give(now):
            wanted[who] -= count
            given_total += count
            paced.made(who, count, 0, now)
        assert given_total <= 3 + 1 + rate * (now - START)
    while (wait_s := paced.wait_s(now)) is not None:
        now += wait_s
        for who, count in paced.give(now):
            wanted[who] -= count
            paced.made(who, count, 0, now)
    assert not any(wanted.values())


def test_a_slice_of_nearly_nothing_is_looked_at_again() -> None:
    """Others hold the whole limit for a moment: who waits goes on when they have let go, not minutes later."""
    paced = pacer(100, 100)
    paced.enter("a", START)
    paced.want("a", 50)
    assert paced.tokens is not None
    paced.tokens.adjust(0, 1, START)
    assert paced.give(START) == [("a", 1)]
    assert paced.wait_s(START) == LOOK_AGAIN_S
    paced.tokens.adjust(100, 100, START)
    assert paced.give(START + LOOK_AGAIN_S) == [("a", 49)]
