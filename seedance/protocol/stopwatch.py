"""How long a client waited for its first text: what only the gateway that answers it can measure (§3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seedance.protocol.frames import Timing

__all__ = ["Stopwatch"]


@dataclass(slots=True)
class Stopwatch:
    """Instants of one stream, in seconds of its host's clock.

    `asked`: the `generate` was here; None: it was another gateway that heard it. `framed`: the first
    text was handed to the transport.
    """

    asked: float | None = None
    framed: float | None = None

    def frame(self, now: float) -> None:
        """Text leaves; the first time counts."""
        if self.framed is None:
            self.framed = now

    def timing(self, told: Timing, now: float) -> Timing:
        """The instance's word, completed at this end; a text that is told in its `done` leaves now.

        `ttft_ms` and `total_ms` are what passed here, by one clock. The instance's parts are
        durations, so its clock does not matter; what they leave of `ttft_ms` is `egress_ms`, the
        ways there and back included. Who did not hear the request passes the instance's word on.
        """
        if self.asked is None:
            return told
        first = now if self.framed is None else self.framed
        ttft_ms, total_ms = (first - self.asked) * 1e3, (now - self.asked) * 1e3
        egress_ms = ttft_ms - (told.ttft_ms - told.egress_ms)
        if egress_ms < 0:
            # The first text came from an instance that is gone, and its parts went with it.
            return Timing(egress_ms=ttft_ms, ttft_ms=ttft_ms, total_ms=total_ms)
        return replace(told, egress_ms=egress_ms, ttft_ms=ttft_ms, total_ms=total_ms)
