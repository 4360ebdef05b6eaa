"""Who goes to a canary, and what speaks against it."""

from __future__ import annotations

import random
from math import comb

import pytest

from mesh.canary import CanaryPhase, CanaryState, Tally
from router.policy.canary import highest_credible, likelihood, verdict, wants_canary


def _running(share: int) -> CanaryState:
    return CanaryState(1, CanaryPhase.RUNNING, share)


def _tally(ended: int = 0, failed: int = 0, first_tokens: list[float] | None = None) -> Tally:
    tally = Tally(ended, failed)
    for seconds in first_tokens or ():
        tally.first_token(seconds)
    return tally


def test_a_share_is_a_share_of_keys() -> None:
    """1 % and 50 % of the keys go; who goes at 1 % goes at 50 %, and everybody at 100 %."""
    keys = [random.Random(n).getrandbits(32) for n in range(20_000)]
    few = {key for key in keys if wants_canary(_running(100), key, asked=False)}
    half = {key for key in keys if wants_canary(_running(5_000), key, asked=False)}
    assert len(few) / len(keys) == pytest.approx(0.01, abs=0.004)
    assert len(half) / len(keys) == pytest.approx(0.5, abs=0.02)
    assert few < half
    assert all(wants_canary(_running(10_000), key, asked=False) for key in keys)


def test_who_asks_goes_unless_it_was_rolled_back() -> None:
    """`X-Canary: true` works without a share; after a roll-back nothing leads there."""
    assert wants_canary(CanaryState(), 1, asked=True)
    assert not wants_canary(CanaryState(), 1, asked=False)
    assert wants_canary(_running(0), 1, asked=True)
    assert not wants_canary(CanaryState(2, CanaryPhase.ROLLED_BACK), 1, asked=True)


def test_likelihood_is_the_binomial_tail() -> None:
    """Against the sum as it is written, and without overflow at a million."""
    for hits, total, rate in ((3, 10, 0.1), (10, 10, 0.5), (30, 200, 0.05)):
        exact = sum(
            comb(total, k) * rate**k * (1 - rate) ** (total - k) for k in range(hits, total + 1)
        )
        assert likelihood(hits, total, rate) == pytest.approx(exact, rel=1e-9)
    assert likelihood(0, 0, 0.01) == 1.0
    assert likelihood(10_300, 1_000_000, 0.01) == pytest.approx(0.00133, rel=0.05)


def test_highest_credible_narrows_with_counts() -> None:
    """Nothing seen: anything is credible; much seen: little above what was seen."""
    assert highest_credible(0, 0) == 1.0
    assert highest_credible(0, 9) == 0.5
    assert highest_credible(10, 1_000) == pytest.approx(0.024, abs=0.002)
    assert highest_credible(10_000, 1_000_000) == pytest.approx(0.0103, abs=0.0001)


@pytest.mark.parametrize(
    ("canary", "stable", "worse"),
    [
        ((5, 5), (100, 0), True),
        ((5, 5), (5, 0), False),  # of the others too little is known
        ((1, 1), (100_000, 0), False),  # once is no rate
        ((3, 3), (100_000, 0), True),
        ((2_000, 12), (100_000, 0), True),
        ((2_000, 2), (100_000, 0), False),  # 0.1 points are allowed
        ((2_000, 40), (100_000, 2_000), False),  # as bad as the others
        ((2_000, 80), (100_000, 2_000), True),
        ((0, 0), (100_000, 0), False),
    ],
)
def test_error_rate(canary: tuple[int, int], stable: tuple[int, int], worse: bool) -> None:
    """More than 0.1 points above the others', by counts that mean it."""
    assert verdict(_tally(*canary), _tally(*stable)).startswith("error rate" if worse else "")
    assert bool(verdict(_tally(*canary), _tally(*stable))) == worse


def _times(count: int, seed: int, factor: float = 1.0) -> list[float]:
    draw = random.Random(seed)
    return [factor * draw.lognormvariate(-2.3, 0.4) for _ in range(count)]


def test_first_token() -> None:
    """A p99 twice as high is noticed, one 20 % higher is not, and never from few of the others."""
    stable = _tally(first_tokens=_times(20_000, 1))
    assert verdict(_tally(first_tokens=_times(2_000, 2, 2.0)), stable).startswith("first token")
    assert verdict(_tally(first_tokens=_times(100, 2, 4.0)), stable).startswith("first token")
    assert verdict(_tally(first_tokens=_times(20_000, 3, 1.2)), stable) == ""
    few = _tally(first_tokens=_times(500, 4))
    assert verdict(_tally(first_tokens=[10.0] * 1_000), few) == ""


def test_pauses() -> None:
    """Over 50 ms speaks against it by itself: instances tell it only from enough samples."""
    assert verdict(Tally(), Tally(), 50.0) == ""
    assert verdict(Tally(), Tally(), 51.0) == "pauses: p99 51 ms, at most 50"


def test_an_equal_version_is_left_alone() -> None:
    """Of 100 canaries that are as good as the others none is rolled back, however often one looks."""
    times = _times(5_000, 1)
    for seed in range(100):
        draw = random.Random(seed)
        canary, stable = Tally(), Tally()
        for _ in range(60):
            canary.ended += 20
            canary.failed += sum(draw.random() < 0.01 for _ in range(20))
            stable.ended += 200
            stable.failed += sum(draw.random() < 0.01 for _ in range(200))
            for tally, count in ((canary, 10), (stable, 100)):
                for seconds in draw.choices(times, k=count):
                    tally.first_token(seconds)
            assert verdict(canary, stable) == ""
