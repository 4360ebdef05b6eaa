"""The engine's door: a double buffer for requests that come in while it is busy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from inference.engine.messages import CallEnded, Command, Hold, Open, StreamKey, TurnAway

__all__ = ["DOOR_MAX", "DOOR_SWAP_S", "Door"]

# Commands in the door; over it callers wait before they read on. Of requests no more stay than the queue
# has room for.
DOOR_MAX = 8192
DOOR_SWAP_S = 0.05
# Requests let in at a time: some tens of microseconds each, in which nothing else is decided.
OPENINGS_AT_ONCE = 32

_Half = dict[StreamKey, list[Command]]


class Door:
    """New requests collect in one half while the engine takes the other, some at a time.

        put ──► filling ── swap: taking is empty, or 50 ms have passed ──► taking ──► take

    A burst that is in one half is let in fairly: each tenant's first request, then each one's
    second, and so on, in order of arrival; what a swap finds untaken takes its turn again with the
    new ones, and whoever is then beyond the room that the engine has is turned away. Nothing else waits: credit, cancel and the like pass at once, unless the stream's own
    request still waits, then right behind it.
    """

    def __init__(self) -> None:
        self._urgent: list[Command] = []
        self._filling: _Half = {}
        self._taking: _Half = {}
        self._swapped_at = -math.inf
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, commands: Sequence[Command]) -> None:
        """Bring commands, in order."""
        self._count += len(commands)
        for command in commands:
            if isinstance(command, CallEnded):
                self._turn_away(command.call)
            self._place(command).append(command)

    def take(self, now: float, room: int = DOOR_MAX) -> list[Command]:
        """What the engine is to do next; all that is urgent, and the next requests.

        `room` is how many requests may wait here, because the engine can run or queue them.
        """
        taken, self._urgent = self._urgent, []
        if not self._taking or now >= self._swapped_at + DOOR_SWAP_S:
            self._taking, self._filling = _in_turns(self._taking | self._filling), {}
            self._swapped_at = now
            for stream in list(self._taking)[max(room, 0) :]:
                self._count -= len(self._taking.pop(stream)) - 1
                taken.append(TurnAway(stream))
        for stream in list(islice(self._taking, OPENINGS_AT_ONCE)):
            taken += self._taking.pop(stream)
        self._count -= len(taken)
        return taken

    def _place(self, command: Command) -> list[Command]:
        if isinstance(command, CallEnded | Hold):
            return self._urgent
        stream = command.stream
        if isinstance(command, Open) and stream not in self._taking:
            return self._filling.setdefault(stream, [])
        return self._taking.get(stream) or self._filling.get(stream) or self._urgent

    def _turn_away(self, call: int) -> None:
        """Nobody listens to what a call asked that is over: as if it had not been read."""
        for half in (self._filling, self._taking):
            for stream in [stream for stream in half if stream.call == call]:
                self._count -= len(half.pop(stream))


def _in_turns(half: _Half) -> _Half:
    turns: Counter[str] = Counter()

    def turn(entry: tuple[StreamKey, list[Command]]) -> int:
        opening = entry[1][0]
        assert isinstance(opening, Open)  # noqa: S101 - a half's entries begin with one
        turns[opening.tenant] += 1
        return turns[opening.tenant]

    return dict(sorted(half.items(), key=turn))
