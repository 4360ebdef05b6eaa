"""When a `checkpoint` frame is due (§3): at most one a second, after a stream's end, on a new level."""

from __future__ import annotations

from seedance.protocol.frames import Checkpoint

__all__ = ["CheckpointPacer"]


class CheckpointPacer:
    """Knows what the store has, and what the client was told of it.

    The machine has no wall clock: its host's stamp comes with each report and is carried on.
    """

    def __init__(self, interval_s: float, now: float) -> None:
        self._interval_s = interval_s
        self._stored_seq = 0
        self._committed = True
        self._told: tuple[int, bool] = (0, True)
        self._told_at = now - interval_s
        self._end_seq = 0
        self._wall_minus_now_ms = 0.0

    @property
    def committed(self) -> bool:
        """Whether the store was reachable when it was last heard of."""
        return self._committed

    def stored(self, seq: int, wall_ms: int, now: float) -> None:
        """Every sequenced frame up to `seq` is in the store."""
        self._stored_seq = max(self._stored_seq, seq)
        self._wall_minus_now_ms = wall_ms - now * 1000

    def level(self, *, committed: bool, wall_ms: int, now: float) -> None:
        """The store came or went."""
        self._committed = committed
        self._wall_minus_now_ms = wall_ms - now * 1000

    def ended(self, seq: int) -> None:
        """A stream's end has this number: its checkpoint does not wait for the second to pass."""
        self._end_seq = seq

    def take(self, now: float) -> Checkpoint | None:
        """The frame that is due now."""
        if not self._due(now):
            return None
        self._told, self._told_at = (self._stored_seq, self._committed), now
        return Checkpoint(
            self._stored_seq,
            int(now * 1000 + self._wall_minus_now_ms),
            "committed" if self._committed else "memory",
        )

    def _due(self, now: float) -> bool:
        told_seq, told_level = self._told
        if self._committed != told_level:
            return True
        if self._stored_seq <= told_seq:
            return False
        end_is_news = told_seq < self._end_seq <= self._stored_seq
        return end_is_news or now >= self._told_at + self._interval_s

    @property
    def deadline(self) -> float | None:
        """When to look again; None: nothing is held back."""
        return self._told_at + self._interval_s if self._stored_seq > self._told[0] else None
