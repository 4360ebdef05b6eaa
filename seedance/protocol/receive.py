"""The receiving end of a session's numbered frames: each once, in order, acknowledged (§4.1)."""

from __future__ import annotations

from typing import Generic, TypeVar

from seedance.protocol.frames import Ack

__all__ = ["ACK_DELAY_S", "ACK_EVERY_FRAMES", "ReceiveWindow"]

# One acknowledgement for so many frames, or so long after the first that has none (§4.1).
ACK_EVERY_FRAMES = 8
ACK_DELAY_S = 0.05

F = TypeVar("F")


class ReceiveWindow(Generic[F]):
    """What arrived of `[base, base + size)`, and whether an `ack` is due.

    `base` is the next number expected: everything below it was handed on, in order.
    """

    def __init__(self, size: int, base: int = 1) -> None:
        self.size = size
        self.base = base
        self._kept: dict[int, F] = {}
        self._unacknowledged = 0
        self._ack_at: float | None = None

    def receive(self, seq: int, frame: F, now: float) -> list[F]:
        """Take frame number `seq`; gives the frames whose turn has come, oldest first.

        Below the window is a duplicate and beyond it is more than was agreed: both are dropped,
        and both ask for an `ack`, for they show a sender that does not know where we are.
        """
        self._unacknowledged += 1
        if self._ack_at is None:
            self._ack_at = now + ACK_DELAY_S
        if not self.base <= seq < self.base + self.size:
            return []
        self._kept.setdefault(seq, frame)
        ready: list[F] = []
        while self.base in self._kept:
            ready.append(self._kept.pop(self.base))
            self.base += 1
        return ready

    def ack_deadline(self) -> float | None:
        """When an `ack` is due: in the past once eight frames wait, None with nothing to say."""
        if self._unacknowledged >= ACK_EVERY_FRAMES:
            return float("-inf")
        return self._ack_at

    def ack(self) -> Ack:
        """The acknowledgement of everything so far; nothing is due after it."""
        self._unacknowledged = 0
        self._ack_at = None
        return Ack(self.base, tuple(self._ranges()))

    def restart(self, base: int) -> None:
        """Go on at `base` on a new connection, without what was kept above it (§4.5)."""
        assert base >= self.base, "a number that was processed never comes again"  # noqa: S101
        self.base = base
        self._kept.clear()
        self._unacknowledged = 0
        self._ack_at = None

    def _ranges(self) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        for seq in sorted(self._kept):
            if ranges and ranges[-1][1] == seq - 1:
                ranges[-1] = (ranges[-1][0], seq)
            else:
                ranges.append((seq, seq))
        return ranges

    def check(self) -> None:
        """Our own invariants, for tests: kept frames lie inside the window, above its base."""
        assert all(self.base < seq < self.base + self.size for seq in self._kept)  # noqa: S101
        assert (self._unacknowledged == 0) == (self._ack_at is None)  # noqa: S101
