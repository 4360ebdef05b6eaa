"""What the ends of a connection remember of the frames before, to tell only differences (§5).

Both ends go through the same steps with the same frames, so that they always predict the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from seedance.protocol.envelope import corrupted

__all__ = ["STREAMS_MAX", "Chain", "Streams"]

# Who writes remembers so many of the ids that were named last; a session has 64 live streams, and a
# frame that is sent again after its stream's end names one that never ends again. Who reads
# remembers twice as many, for it hears a batch's names before the batch's frames.
STREAMS_MAX = 1024
# A clock that jumps further gives a new base instead of a difference.
_TIMESTAMP_JUMP_MAX_MS = 2**31


@dataclass(slots=True)
class Streams:
    """Numbers for the `kept` stream ids that were named last, and where each one's text ends so far."""

    kept: int = STREAMS_MAX
    numbers: dict[str, int] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    text_end: dict[int, int] = field(default_factory=dict)
    next_number: int = 0

    def name(self, stream_id: str) -> int:
        """Give an id the next number; the oldest one's may be no more."""
        number, self.next_number = self.next_number, self.next_number + 1
        self.numbers[stream_id] = number
        self.ids[number] = stream_id
        self.text_end[number] = 0
        if number - self.kept in self.ids:
            self.end(number - self.kept)
        return number

    def id_of(self, number: int) -> str:
        """The id with this number. Raises `ProtocolFault` when none has it."""
        if number not in self.ids:
            raise corrupted("a stream has no such number")
        return self.ids[number]

    def end(self, number: int) -> None:
        """The stream's `done` or `error` was told, or it was long ago: its number is no more."""
        stream_id = self.ids.pop(number)
        del self.text_end[number]
        if self.numbers.get(stream_id) == number:
            del self.numbers[stream_id]


@dataclass(slots=True)
class Chain:
    """The last sequence number, token and time that went over the connection."""

    streams: Streams = field(default_factory=Streams)
    next_seq: int = 1
    token_stream: int = 0
    timestamp: int | None = None
    interval: int = 0

    def interval_change(self, timestamp: int) -> int | None:
        """What a batch that begins at `timestamp` says of it; None: it needs a base."""
        if self.timestamp is None or abs(timestamp - self.timestamp) > _TIMESTAMP_JUMP_MAX_MS:
            return None
        return timestamp - self.timestamp - self.interval

    def begin(self, change: int | None, base: int) -> int:
        """The timestamp of a batch's first token, by difference or (`change` None) by its base."""
        if change is None:
            self.interval, timestamp = 0, base
        elif self.timestamp is None:
            raise corrupted("the first batch has no base for timestamps")
        else:
            self.interval += change
            timestamp = self.timestamp + self.interval
        self.timestamp = timestamp
        return timestamp
