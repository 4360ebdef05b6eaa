"""A new version beside the old one: who goes to it, and when it has shown that nobody should.

Gateways count what they see of both groups, the router adds it up and judges. A verdict needs counts
that mean it: rates are compared by the ends of their Wilson score intervals (Wilson 1927) at three
standard deviations, so that with few requests there is no verdict, and with equal versions one look
in a thousand would be wrong even without the margins.

    error rate    lowest credible of the canary > highest credible of the others + 0.1 points
    first token   more than 1 % of the canary's, credibly, take over 1.4 × the others' p99, of which
                  the highest credible is taken (some 900 requests of theirs are needed)
    pauses        p99 of an instance's event loop and garbage collector > 50 ms
"""

from __future__ import annotations

import math

from mesh.canary import SHARE_MAX, STEPS_PER_OCTAVE, CanaryPhase, CanaryState, Tally, step_ends_s
from router.policy.affinity import fmix32

__all__ = ["verdict", "wants_canary", "wilson"]

ERROR_MARGIN = 0.001
PAUSE_P99_MAX_MS = 50.0
DEVIATIONS = 3.0
REQUESTS_MIN = 30
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


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The lowest and the highest rate that so many hits of a total are credible with."""
    if not total:
        return 0.0, 1.0
    rate, squared = hits / total, DEVIATIONS**2
    middle = rate + squared / (2 * total)
    spread = DEVIATIONS * math.sqrt((rate * (1 - rate) + squared / (4 * total)) / total)
    width = 1 + squared / total
    return max(0.0, (middle - spread) / width), min(1.0, (middle + spread) / width)


def verdict(canary: Tally, stable: Tally, pause_p99_ms: float = 0.0) -> str:
    """Why the canary is rolled back; empty: nothing speaks against it, as far as is known."""
    if pause_p99_ms > PAUSE_P99_MAX_MS:
        return f"pauses: p99 {pause_p99_ms:.0f} ms, at most {PAUSE_P99_MAX_MS:.0f}"
    if canary.ended >= REQUESTS_MIN and (why := _fails_more(canary, stable)):
        return why
    return _slower(canary.first_tokens, stable.first_tokens)


def _fails_more(canary: Tally, stable: Tally) -> str:
    lowest, _ = wilson(canary.failed, canary.ended)
    _, highest = wilson(stable.failed, stable.ended)
    if lowest <= highest + ERROR_MARGIN:
        return ""
    here = f"{canary.failed} of {canary.ended} failed"
    return f"error rate: {here}, of the others {stable.failed} of {stable.ended}"


def _slower(canary: list[int], stable: list[int]) -> str:
    p99 = _p99_at_most(stable)
    total = sum(canary)
    if p99 is None or total < REQUESTS_MIN:
        return ""
    bound = p99 + _SLOWER_STEPS
    slow = sum(canary[bound + 1 :])
    lowest, _ = wilson(slow, total)
    if lowest <= _SLOW_SHARE:
        return ""
    bound_ms = 1e3 * step_ends_s(bound)
    return f"first token: {slow} of {total} took over {bound_ms:.0f} ms, 1.4 x the others' p99"


def _p99_at_most(counts: list[int]) -> int | None:
    """The lowest step above which credibly at most 1 % lie; None: too few to say."""
    total = above = sum(counts)
    for step, count in enumerate(counts):
        above -= count
        if wilson(above, total)[1] <= _SLOW_SHARE:
            return step
    return None
