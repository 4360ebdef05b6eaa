"""Percentiles of a stream of values in a kilobyte: DDSketch (Masson, Rim, Lee; VLDB 2019).

The published package does the same at twice the cost of an `add`, and a load tool adds once per token
while it must stay lighter than what it measures.
"""

from __future__ import annotations

import math
from collections import Counter

__all__ = ["Sketch"]

# A percentile is within 1 % of the value that has its rank.
ACCURACY = 0.01
_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_PER_LOG = 1 / math.log(_GAMMA)
# A microsecond, in seconds: what is shorter counts as this. Eleven decades above it are 1,300 buckets.
SMALLEST = 1e-6
LARGEST = 1e5


class Sketch:
    """Durations in seconds; bucket i holds those in (γ^(i-1), γ^i]."""

    __slots__ = ("buckets", "count", "largest", "total")

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0
        self.largest = 0.0

    def add(self, seconds: float) -> None:
        """Count one value."""
        value = min(max(seconds, SMALLEST), LARGEST)
        self.buckets[math.ceil(math.log(value) * _PER_LOG)] += 1
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)

    def merge(self, other: Sketch) -> None:
        """Count everything that the other has counted: as exact as if it had been added here."""
        self.buckets.update(other.buckets)
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def quantile(self, share: float) -> float:
        """The value in seconds that this share of all do not exceed; NaN of none."""
        if not self.count:
            return math.nan
        rank = share * (self.count - 1)
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen > rank:
                # The middle of the bucket, by relative distance.
                return min(2 * _GAMMA**bucket / (_GAMMA + 1), self.largest)
        return self.largest
