"""A new version beside the old one: who goes to it, and when it has shown that nobody should.

Gateways count what they see of both groups, the router adds it up and judges. A verdict needs counts
that mean it: an exact binomial test says how likely the canary's figures were if it were no worse
than the others, whose own rate is taken at its highest credible value (the upper end of Wilson's
score interval, 1927, at three standard deviations). One in ten thousand is too unlikely.

    error rate    tested against the others' + 0.1 points
    first token   how many take over 1.4 × the others' p99, tested against 1 %; their p99, too, is
                  the highest credible, for which some 900 of their requests are needed
    pauses        p99 of an instance's event loop and garbage collector over 50 ms (`mesh.pauses`)
"""

from __future__ import annotations

import math

from mesh.canary import SHARE_MAX, STEPS_PER_OCTAVE, CanaryPhase, CanaryState, Tally, step_ends_s
from router.policy.affinity import fmix32

__all__ = ["highest_credible", "likelihood", "verdict", "wants_canary"]

ERROR_MARGIN = 0.001
PAUSE_P99_MAX_MS = 50.0
DEVIATIONS = 3.0
TOO_UNLIKELY = 1e-4
_SLOW_SHARE = 0.01
# 40 % more is half an octave.
_SLOWER_STEPS = STEPS_PER_OCTAVE // 2
# Keeps the draw for the canary apart from the draws among instances.
_CANARY_SALT = 0x5EED_CA4A


def wants_canary(state: CanaryState, key: int, *, asked: bool) -> bool:
    """Whether a key goes to the canary instances, as far as there are any.

    A key that goes at one share goes at every higher one.
    """
    match state.phase:
        case CanaryPhase.ROLLED_BACK:
            return False
        case CanaryPhase.IDLE:
            return asked
        case CanaryPhase.RUNNING:
            return asked or fmix32(key ^ _CANARY_SALT) % SHARE_MAX < state.share


def highest_credible(hits: int, total: int) -> float:
    """The highest rate with which so many hits of a total are credible."""
    if not total:
        return 1.0
    rate, squared = hits / total, DEVIATIONS**2
    middle = rate + squared / (2 * total)
    spread = DEVIATIONS * math.sqrt((rate * (1 - rate) + squared / (4 * total)) / total)
    return min(1.0, (middle + spread) / (1 + squared / total))


def likelihood(hits: int, total: int, rate: float) -> float:
    """How likely so many hits or more are at a rate (the upper tail of the binomial distribution)."""
    if hits <= total * rate:
        return 1.0
    term = math.exp(
        math.lgamma(total + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(total - hits + 1)
        + hits * math.log(rate)
        + (total - hits) * math.log1p(-rate)
    )
    tail = 0.0
    # Above the mean each term is smaller than the one before.
    while term > tail * 1e-12 and hits <= total:
        tail += term
        term *= (total - hits) / (hits + 1) * rate / (1 - rate)
        hits += 1
    return tail


def verdict(canary: Tally, stable: Tally, pause_p99_ms: float = 0.0) -> str:
    """Why the canary is rolled back; empty: nothing speaks against it, as far as is known."""
    if pause_p99_ms > PAUSE_P99_MAX_MS:
        return f"pauses: p99 {pause_p99_ms:.0f} ms, at most {PAUSE_P99_MAX_MS:.0f}"
    return _fails_more(canary, stable) or _slower(canary.first_tokens, stable.first_tokens)


def _fails_more(canary: Tally, stable: Tally) -> str:
    rate = highest_credible(stable.failed, stable.ended) + ERROR_MARGIN
    if rate >= 1 or likelihood(canary.failed, canary.ended, rate) > TOO_UNLIKELY:
        return ""
    here = f"{canary.failed} of {canary.ended} failed"
    return f"error rate: {here}, of the others {stable.failed} of {stable.ended}"


def _slower(canary: list[int], stable: list[int]) -> str:
    p99 = _p99_at_most(stable)
    if p99 is None:
        return ""
    bound, total = p99 + _SLOWER_STEPS, sum(canary)
    slow = sum(canary[bound + 1 :])
    if likelihood(slow, total, _SLOW_SHARE) > TOO_UNLIKELY:
        return ""
    bound_ms = 1e3 * step_ends_s(bound)
    return f"first token: {slow} of {total} took over {bound_ms:.0f} ms, 1.4 x the others' p99"


def _p99_at_most(counts: list[int]) -> int | None:
    """The lowest step above which credibly at most 1 % lie; None: too few to say."""
    total = above = sum(counts)
    for step, count in enumerate(counts):
        above -= count
        if highest_credible(above, total) <= _SLOW_SHARE:
            return step
    return None
