"""What is read out of many rounds on a machine that others use, too.

Disturbance only ever adds time, so the quietest rounds say most; how far two halves of the rounds
disagree says what a difference is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

__all__ = ["noise", "quiet", "spread"]

# The share of the rounds that counts.
QUIET_SHARE = 3


def quiet(values: Sequence[float]) -> float:
    """The mean of the lowest third. Raises `ValueError` for none."""
    if not values:
        raise ValueError("nothing was measured")
    return fmean(sorted(values)[: max(1, len(values) // QUIET_SHARE)])


def noise(values: Sequence[float]) -> float:
    """How far the even and the odd rounds are apart, as a share; 0: there was but one."""
    if len(values) < 2:  # noqa: PLR2004 - no halves
        return 0.0
    return abs(quiet(values[::2]) - quiet(values[1::2])) / quiet(values)


def spread(values: Sequence[float]) -> float:
    """The middle half of the rounds, from its lowest to its highest, as a share of the median."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return (middle[-1] - middle[0]) / ordered[len(ordered) // 2]
