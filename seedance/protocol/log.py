"""The numbered log of a session: what was handed to the transport and is not acknowledged yet (§4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from seedance.protocol.effects import Send
from seedance.protocol.frames import SequencedFrame, Token

__all__ = ["Entry", "FrameLog"]


@dataclass(slots=True)
class Entry(Send):
    """One sequenced frame, which is also the effect that sends it: once made, it is only told again.

    `text` is its JSON with the number in it. `sent_at` is when it was last handed to the transport,
    `sends` how often on this connection; `received` that a `sack` named it.
    """

    frame: SequencedFrame
    seq: int
    text: str
    sent_at: float = 0.0
    sends: int = 1
    received: bool = False


class FrameLog:
    """Numbers frames from `first_seq` on and keeps them until they are acknowledged."""

    __slots__ = (
        "entries",
        "next_seq",
    )

    def __init__(self, entries: Iterable[Entry] = (), next_seq: int = 1) -> None:
        self.entries = deque(entries)
        self.next_seq = next_seq

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def base(self) -> int:
        """The lowest number that is not acknowledged (cumulatively); the next one if all are."""
        return self.entries[0].seq if self.entries else self.next_seq

    @property
    def last_seq(self) -> int:
        """The highest number given so far; 0: none."""
        return self.next_seq - 1

    def append(self, frame: SequencedFrame, text: str, now: float) -> Entry:
        """Keep a frame under the number `next_seq`, which `text` already has in it."""
        seq = self.next_seq
        entry = Entry(frame, seq, text, now)
        self.entries.append(entry)
        self.next_seq = seq + 1
        return entry

    def acknowledge(self, seq: int) -> Entry | None:
        """Everything below `seq` has been processed: forget it. Returns the newest one forgotten."""
        newest, entries = None, self.entries
        while entries and entries[0].seq < seq:
            newest = entries.popleft()
        return newest

    def mark_received(self, ranges: Iterable[tuple[int, int]]) -> None:
        """A `sack` names inclusive ranges above the base: those are not sent again by the timer."""
        for first, last in ranges:
            for entry in self.entries:
                if first <= entry.seq <= last:
                    entry.received = True

    def leftmost(self) -> Entry | None:
        """The unacknowledged frame that has the timer (§4.2)."""
        return self.entries[0] if self.entries else None

    def of_stream(self, stream: str) -> list[Entry]:
        """The unacknowledged frames of one stream."""
        return [e for e in self.entries if e.frame.id == stream and not e.received]

    def tokens_of(self, stream: str) -> int:
        """Tokens in frames of a stream that the client has not acknowledged."""
        frames = (entry.frame for entry in self.entries if not entry.received)
        return sum(f.tokens for f in frames if isinstance(f, Token) and f.id == stream)

    def replay_after(self, last_seq: int, now: float) -> list[Entry]:
        """What follows `last_seq`, to be sent on a new connection, which has received none of it."""
        self.acknowledge(last_seq + 1)
        for entry in self.entries:
            entry.sent_at, entry.sends, entry.received = now, 1, False
        return list(self.entries)

    def check(self) -> None:
        """Raise `AssertionError` unless numbers rise by one up to `next_seq`."""
        numbers = [entry.seq for entry in self.entries]
        assert numbers == list(range(self.base, self.next_seq))  # noqa: S101
