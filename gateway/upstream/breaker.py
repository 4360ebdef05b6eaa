"""Keeps new streams away from an instance that answers late or not at all. Pure: told the time.

    CLOSED ──three suspects in a row, or a broken call──► OPEN ◄─┐
      ▲                                                   │     suspect, broken
      │                              answered, back-off over    │
      └──────── well ──────────── HALF_OPEN ◄─────────────┘─────┘

What is measured is the round trip of a ping on the link once a second, which the instance's event loop
answers: a long prefill or a full queue delays an answer, and no ping. What an instance says about
a stream (`overloaded`, `rate_limited`, `bad_request`) never comes here, so it opens nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from statistics import fmean, pstdev

__all__ = ["Breaker", "BreakerState"]

SAMPLES_MAX = 16
# Fewer say nothing about how much they vary; until then only silence is suspect.
SAMPLES_MIN = 4
SIGMAS = 3.0
MARGIN_S = 0.020
SUSPECTS_IN_A_ROW = 3
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 30.0
# Closed for so long, the next opening begins with the shortest back-off again.
STEADY_S = 10.0
# Of the streams that an instance would get while half-open: the first, and every hundredth.
PROBE_EVERY = 100


class BreakerState(Enum):
    """Whether new streams may go to an instance: all, none, or a few as probes."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class _Input(Enum):
    ILL = "ill"
    ANSWERED = "answered"
    WELL = "well"


_S, _I = BreakerState, _Input
# What is not in the table changes nothing.
_NEXT: dict[tuple[BreakerState, _Input], BreakerState] = {
    (_S.CLOSED, _I.ILL): _S.OPEN,
    (_S.OPEN, _I.ANSWERED): _S.HALF_OPEN,
    (_S.HALF_OPEN, _I.ILL): _S.OPEN,
    (_S.HALF_OPEN, _I.WELL): _S.CLOSED,
}


class Breaker:
    """One instance's. `jitter` gives numbers evenly spread over [0, 1); `on_change` hears of states.

    Suspects stay out of what others are measured by, or three in a row could never happen. An
    instance that goes on answering, but slowly, when the back-off has reached its longest is not ill but
    far away: the breaker closes, and measures by its new pace.
    """

    def __init__(
        self, jitter: Callable[[], float], on_change: Callable[[BreakerState], None]
    ) -> None:
        self.state = BreakerState.CLOSED
        self._jitter = jitter
        self._on_change = on_change
        self._samples: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._suspects: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._in_a_row = 0
        self._backoff_s = BACKOFF_MIN_S
        self._retry_at = 0.0
        self._closed_at = float("-inf")
        self._asked = 0

    # ------------------------------------------------------------ what is seen

    def sample(self, rtt_s: float | None, now: float) -> None:
        """A ping came back after so long; None: not within its time."""
        if rtt_s is None or rtt_s > self.suspect_above_s:
            self._suspected(rtt_s, now)
            return
        self._in_a_row = 0
        self._samples.append(rtt_s)
        match self.state:
            case BreakerState.CLOSED:
                self._suspects.clear()
            case BreakerState.OPEN:
                self._answered(now)
            case BreakerState.HALF_OPEN:
                self._close(now)

    def broken(self, now: float) -> None:
        """A call broke."""
        self._ill(now)

    @property
    def suspect_above_s(self) -> float:
        """Round trips above this are suspect: max(μ + 3σ, μ + 20 ms), infinite with too few samples."""
        if len(self._samples) < SAMPLES_MIN:
            return math.inf
        mean = fmean(self._samples)
        return mean + max(SIGMAS * pstdev(self._samples, mean), MARGIN_S)

    def _suspected(self, rtt_s: float | None, now: float) -> None:
        if rtt_s is not None:
            self._suspects.append(rtt_s)
        match self.state:
            case BreakerState.CLOSED:
                self._in_a_row += 1
                if self._in_a_row >= SUSPECTS_IN_A_ROW:
                    self._ill(now)
            case BreakerState.HALF_OPEN if rtt_s is not None and self._backoff_s >= BACKOFF_MAX_S:
                self._samples = self._suspects.copy()
                self._close(now)
            case BreakerState.HALF_OPEN:
                self._ill(now)
            case BreakerState.OPEN if rtt_s is not None:
                self._answered(now)

    # ------------------------------------------------------------ what follows

    def take_probe(self) -> bool:
        """Whether a stream that would go to this instance may, half-open as it is."""
        self._asked += 1
        return self._asked % PROBE_EVERY == 1

    def _ill(self, now: float) -> None:
        if self.state is BreakerState.CLOSED and now - self._closed_at >= STEADY_S:
            self._backoff_s = BACKOFF_MIN_S
        else:
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)
        # The upper half of the interval: gateways that saw the same do not come back in step.
        self._retry_at = now + self._backoff_s * (1 + self._jitter()) / 2
        self._in_a_row = 0
        self._move(_Input.ILL)

    def _answered(self, now: float) -> None:
        if now >= self._retry_at:
            self._asked = 0
            self._move(_Input.ANSWERED)

    def _close(self, now: float) -> None:
        self._suspects.clear()
        self._closed_at = now
        self._move(_Input.WELL)

    def _move(self, what: _Input) -> None:
        after = _NEXT.get((self.state, what), self.state)
        if after is not self.state:
            self.state = after
            self._on_change(after)
