"""How long clients wait for their WebSocket, and what share of them this gateway should get for it.

A slow handshake is how a client meets a gateway whose event loop is behind, before any time-out or
health check does.
"""

from __future__ import annotations

import math
from collections import deque

__all__ = ["Handshakes"]

# What a handshake may take at the 95th percentile before this gateway asks for less.
TARGET_S = 0.035
PERCENTILE = 0.95
# The latest ones of the last half minute; fewer than this many say nothing.
LATEST_MAX = 256
LATEST_S = 30.0
ENOUGH = 20
# Some clients always come, so that an improvement is seen.
SHARE_MIN, SHARE_MAX = 10, 100


class Handshakes:
    """The latest handshakes; times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=LATEST_MAX)

    def took(self, seconds: float, now: float) -> None:
        """A client was greeted so long after its request had arrived."""
        self._latest.append((now, seconds))

    def p95_s(self, now: float) -> float | None:
        """The 95th percentile by nearest rank; None: there were too few."""
        took = sorted(seconds for at, seconds in self._latest if at >= now - LATEST_S)
        if len(took) < ENOUGH:
            return None
        return took[math.ceil(PERCENTILE * len(took)) - 1]

    def share(self, now: float) -> int:
        """Percent of its usual share that this gateway can take: less by as much as it is late."""
        p95_s = self.p95_s(now)
        if p95_s is None or p95_s <= TARGET_S:
            return SHARE_MAX
        return max(SHARE_MIN, int(SHARE_MAX * TARGET_S / p95_s))
