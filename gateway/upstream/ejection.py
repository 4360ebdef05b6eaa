"""Takes an instance out of choice that answers, but fails what it is given. Pure: told the time.

The breaker sees instances that are slow or gone; a broken model or a full disk leaves the event loop
well, and only its streams tell.
"""

from __future__ import annotations

__all__ = ["Ejection"]

FAILURES_IN_A_ROW = 5
EJECTED_S = 5.0
EJECTED_MAX_S = 300.0


class Ejection:
    """One instance's. Out after so many failures in a row, for a time that doubles.

    Back again, the next stream is the probe: when it fails too the instance is out at once.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self._wait_s = EJECTED_S
        self._until = float("-inf")

    def ended(self, now: float, *, failed: bool) -> None:
        """A stream has ended, well or by the instance's fault."""
        if not failed:
            self._in_a_row, self._wait_s = 0, EJECTED_S
            return
        self._in_a_row += 1
        if self._in_a_row >= FAILURES_IN_A_ROW and not self.out(now):
            self._until = now + self._wait_s
            self._wait_s = min(2 * self._wait_s, EJECTED_MAX_S)

    def out(self, now: float) -> bool:
        """Whether it is to be left alone."""
        return now < self._until
