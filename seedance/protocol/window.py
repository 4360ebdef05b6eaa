"""How many unacknowledged frames may be in flight (§4.3), and what that is as credit in tokens."""

from __future__ import annotations

from seedance.protocol.frames import WindowRange

__all__ = ["CREDIT_MAX", "SendWindow", "credit_share"]

# Tokens that an engine may be ahead of one stream's frames, however much of the window is free: all that
# waits in a busy gateway and before it. Half of it covers 80 ms to the instance and back at 100 tokens/s.
CREDIT_MAX = 16
GROW, SHRINK = 1.2, 0.7
FAST_S, SLOW_S = 0.050, 0.200


class SendWindow:
    """Grows while acknowledgements are quick, shrinks while they are slow.

    A frame that was sent more than once tells no time (Karn). One late burst of acknowledgements
    shrinks the window once: a frame sent before the last change says nothing about the new size.
    """

    __slots__ = (
        "_limits",
        "_shrunk_at",
        "_size",
        "round_trip_s",
        "size",
    )

    def __init__(self, limits: WindowRange) -> None:
        self._limits = limits
        self._size = float(limits.initial)
        # Frames that may be in flight.
        self.size = limits.initial
        self._shrunk_at = float("-inf")
        self.round_trip_s = 0.0

    def cover(self, in_flight: int) -> None:
        """So many are in flight already, as a former owner's window let them: they are said again."""
        self._size = max(self._size, min(in_flight, self._limits.max))
        self.size = int(self._size)

    def acknowledged(self, sent_at: float, sends: int, now: float) -> None:
        """The newest frame that an `ack` covers was sent then, that often."""
        if sends > 1:
            return
        self.round_trip_s = now - sent_at
        if self.round_trip_s < FAST_S:
            self._size = min(self._size * GROW, self._limits.max)
        elif self.round_trip_s > SLOW_S and sent_at >= self._shrunk_at:
            self._size = max(self._size * SHRINK, self._limits.min)
            self._shrunk_at = now
        self.size = int(self._size)


def credit_share(free: int, live_streams: int) -> int:
    """What each live stream gets of the free window, 1 to `CREDIT_MAX`; nothing of a full one."""
    if free <= 0 or live_streams <= 0:
        return 0
    return min(max(1, free // live_streams), CREDIT_MAX)
