"""When sockets are written to: all of them together, and while more is coming, several frames at once.

A system call for each frame is a third of what a token costs, and under load the next message of an
instance is here before the frames of this one are written. So writing waits for what is ready to be
read, as a server does that answers requests which come in one piece: while the loop finds more, and
until a write carries `FRAMES_A_WRITE` or `WAIT_MAX_S` have passed. A loop that finds nothing more
writes two turns later, which are microseconds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from mesh.clock import Clock

__all__ = ["FRAMES_A_WRITE", "WAIT_MAX_S", "Gathering", "Writes"]

log = logging.getLogger("gateway")

# Two frames in a write halve its price for each, eight leave an eighth: more would only add delay.
FRAMES_A_WRITE = 8
WAIT_MAX_S = 0.010
# A message that is here takes a turn to be read and one to become frames.
QUIET_TURNS = 2


class Gathering(Protocol):
    """A socket with frames that are not written yet."""

    def flush(self) -> None:
        """Write them."""
        ...


class Writes:
    """Calls `flush` of each socket that has asked `soon`, once.

    Whoever gathers a frame counts it in `frames`: that tells whether anything came in a turn of the loop.
    """

    def __init__(self, clock: Clock) -> None:
        self.frames = 0
        self._clock = clock
        self._waiting: list[Gathering] = []
        self._frames_before = 0
        self._frames_seen = 0
        self._quiet_turns = 0
        self._until = 0.0

    def soon(self, socket: Gathering) -> None:
        """This socket has its first frame since it was flushed; the frame is counted already."""
        if not self._waiting:
            self._frames_before = self._frames_seen = self.frames - 1
            self._until = self._clock.monotonic() + WAIT_MAX_S
            asyncio.get_running_loop().call_soon(self._look)
        self._waiting.append(socket)

    def _look(self) -> None:
        if self.frames != self._frames_seen:
            self._frames_seen, self._quiet_turns = self.frames, 0
        else:
            self._quiet_turns += 1
        if self._quiet_turns < QUIET_TURNS and not self._enough():
            asyncio.get_running_loop().call_soon(self._look)
            return
        waiting, self._waiting = self._waiting, []
        for socket in waiting:
            try:
                socket.flush()
            except Exception:  # one connection's fault must not keep the others' frames back
                log.exception("a connection cannot be written to")

    def _enough(self) -> bool:
        gathered = self.frames - self._frames_before
        enough = gathered >= FRAMES_A_WRITE * len(self._waiting)
        return enough or self._clock.monotonic() >= self._until
