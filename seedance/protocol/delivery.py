"""The way out of a session: numbers, window, acknowledgements and timers of one link at a time (§4).

The link is DOWN, OPEN, or FULL while the transport's buffer is over its mark. A simple client has
no window: its last frames are kept all the same, so that its first `ack` finds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from seedance.protocol.checkpoints import CheckpointPacer
from seedance.protocol.effects import CloseLink, Effect, Send
from seedance.protocol.errors import CloseCode
from seedance.protocol.frames import (
    Done,
    ErrorFrame,
    Heartbeat,
    Ping,
    SequencedFrame,
    ServerFrame,
    Token,
    WindowRange,
)
from seedance.protocol.json_codec import encode_server, encode_token
from seedance.protocol.log import Entry, FrameLog
from seedance.protocol.pressure import Pressed, PressurePacer
from seedance.protocol.silence import Silence, Verdict
from seedance.protocol.window import SendWindow

__all__ = ["Delivery", "LinkState", "SessionRules"]

# Only the leftmost frame has a timer (§4.2).
RESEND_AFTER_MIN_S = 1.0
RESENDS_MAX = 3


@dataclass(frozen=True, slots=True)
class SessionRules:
    """The figures that a session lives by; most of them are told to the client."""

    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    window: WindowRange = field(default_factory=WindowRange)
    resume_ttl_s: float = 120
    streams_max: int = 64
    ended_max: int = 1024
    # Frames that do not wait for the window can outrun it; a client that lets this many gather
    # unacknowledged has stopped reading.
    log_entries_max: int = 1024
    checkpoint_interval_s: float = 1.0


class LinkState(Enum):
    """Whether there is a connection, and whether its transport takes more."""

    DOWN = "down"
    OPEN = "open"
    FULL = "full"


# By a name of its own: to look a member up in its enum costs ten times a global (Python 3.11).
_DOWN, _OPEN, _FULL = LinkState.DOWN, LinkState.OPEN, LinkState.FULL


class Delivery:
    """Turns frames into effects (`out`), and remembers what is unacknowledged."""

    __slots__ = (
        "_look_at",
        "_moved_at",
        "_silence",
        "checkpoints",
        "link",
        "log",
        "out",
        "pressure",
        "rules",
        "window",
        "windowed",
    )

    def __init__(self, rules: SessionRules, now: float, log: FrameLog | None = None) -> None:
        self.rules = rules
        self.out: list[Effect] = []
        self.log = log or FrameLog()
        self.window = SendWindow(rules.window)
        self.checkpoints = CheckpointPacer(rules.checkpoint_interval_s, now)
        self.pressure = PressurePacer()
        self.link = _DOWN
        self.windowed = False
        self._silence = Silence(rules.heartbeat.session / 3, rules.heartbeat.session, now)
        self._moved_at = now
        self._look_at = now

    # ------------------------------------------------------------ the link

    def up(self, *, windowed: bool, now: float) -> None:
        """A connection is there, with an empty transport."""
        self.link = _OPEN
        self.windowed = windowed
        self.pressure.fresh()
        self._moved_at = now
        self._silence = Silence(self.rules.heartbeat.session / 3, self.rules.heartbeat.session, now)

    def down(self) -> None:
        """The connection is gone."""
        self.link = _DOWN

    def writable(self, *, writable: bool) -> None:
        """The transport's buffer crossed its mark."""
        if self.link is not _DOWN:
            self.link = _OPEN if writable else _FULL

    def heard(self, now: float) -> None:
        """The client sent a message."""
        self._silence.heard(now)

    def received(self, at: float) -> None:
        """A piece of a long message arrived then: its sender is there, and busy (CASES 41)."""
        self._silence.received(at)

    # ------------------------------------------------------------ frames

    def control(self, frame: ServerFrame) -> None:
        """Send a frame that has no number."""
        if self.link is not _DOWN:
            self.out.append(Send(frame))

    def sequenced(self, frame: SequencedFrame, now: float) -> None:
        """Number a frame, keep it, and send it."""
        log = self.log
        if not log.entries:
            self._moved_at = now
        entry = log.append(frame, encode_server(frame, log.next_seq), now)
        self._send(entry)
        if isinstance(frame, Done) or (isinstance(frame, ErrorFrame) and frame.usage is not None):
            self.checkpoints.ended(entry.seq)
        self._bound()

    def token(self, frame: Token, now: float) -> None:
        """`sequenced` for a token, which nearly all frames are, at half the cost."""
        log = self.log
        entries, seq = log.entries, log.next_seq
        if not entries:
            self._moved_at = now
        text = encode_token(frame, seq) if frame.logprobs is None else encode_server(frame, seq)
        entry = Entry(frame, seq, text, now)
        entries.append(entry)
        log.next_seq = seq + 1
        if self.link is not _DOWN:
            self.out.append(entry)
        if not self.windowed or len(entries) > self.rules.log_entries_max:
            self._bound()

    def _bound(self) -> None:
        log = self.log
        if not self.windowed:
            # TCP is a simple client's acknowledgement; the ring is for its first `ack`, which begins
            # with the initial window.
            log.acknowledge(log.next_seq - self.rules.window.initial)
        elif len(log.entries) > self.rules.log_entries_max and self.link is not _DOWN:
            self.out.append(CloseLink(CloseCode.TIMEOUT, "frames are not acknowledged"))
            self.down()

    def _send(self, entry: Entry) -> None:
        if self.link is not _DOWN:
            self.out.append(entry)

    def resend(self, stream: str) -> None:
        """Send a stream's unacknowledged frames again, as they were."""
        for entry in self.log.of_stream(stream):
            entry.sends += 1
            self._send(entry)

    def replay(self, last_seq: int, now: float) -> None:
        """Send what follows `last_seq` on a new connection: all of it was in flight before."""
        again = self.log.replay_after(last_seq, now)
        self.window.cover(len(again))
        for entry in again:
            self._send(entry)

    def checkpoint(self, now: float) -> None:
        """Send the checkpoint that is due, if any; a simple client has no use for one."""
        if self.windowed and self.link is _OPEN:
            frame = self.checkpoints.take(now)
            if frame is not None:
                self.control(frame)

    def press(self, pressed: Pressed, now: float) -> None:
        """Tell the client how much less is asked for, when that has changed."""
        if self.link is _OPEN:
            frame = self.pressure.take(pressed, now)
            if frame is not None:
                self.control(frame)

    # ------------------------------------------------------------ window

    @property
    def open(self) -> bool:
        """Whether frames may be made at all."""
        return self.link is _OPEN

    @property
    def free(self) -> int:
        """Frames that may be sent now; below zero after those that do not wait for the window (§4.3).

        A simple client's window is its transport.
        """
        if not self.windowed:
            return 0 if self.link is _FULL else self.rules.window.max
        return self.window.size - len(self.log.entries)

    def acknowledge(self, seq: int, now: float) -> None:
        """Everything below `seq` has been processed."""
        self.windowed = True
        newest = self.log.acknowledge(seq)
        if newest is not None:
            self._moved_at = now
            self.window.acknowledged(newest.sent_at, newest.sends, now)

    def stalled(self, now: float) -> bool:
        """Whether frames are in flight and no `ack` has moved for the stream layer's time (§2)."""
        late = now >= self._moved_at + self.rules.heartbeat.stream
        return late and self.windowed and len(self.log) > 0

    # ------------------------------------------------------------ timers

    def tick(self, now: float, *, idle: bool) -> None:
        """Do what time asks for. `idle`: the transport's buffer is empty."""
        if self.link is _DOWN:
            return
        if self.windowed:
            match self._silence.check(now):
                case Verdict.GONE:
                    self.out.append(CloseLink(CloseCode.TIMEOUT, "session timeout"))
                    self.down()
                    return
                case Verdict.ASK:
                    self.control(Ping(int(now * 1000)))
                case Verdict.FINE:
                    pass
            self._resend_leftmost(now, idle=idle)
        self.checkpoint(now)

    def _resend_leftmost(self, now: float, *, idle: bool) -> None:
        leftmost = self.log.leftmost()
        if leftmost is None or now < self._resend_at(leftmost):
            return
        if not idle:
            # What was sent is still here: to look again at once would be to look all the time.
            self._look_at = now + RESEND_AFTER_MIN_S
            return
        leftmost.sends += 1
        leftmost.sent_at = now
        self._send(leftmost)

    def _resend_at(self, entry: Entry) -> float:
        if entry.sends > RESENDS_MAX:
            return float("inf")
        wait = max(RESEND_AFTER_MIN_S, 2 * self.window.round_trip_s)
        return max(entry.sent_at + wait * 2.0 ** (entry.sends - 1), self._look_at)

    def deadline(self, now: float) -> float | None:
        """When to tick next; None: nothing waits for time."""
        if self.link is _DOWN:
            return None
        fall_at = self.pressure.deadline if self.open else None
        if not self.windowed:
            return fall_at
        at = self._silence.deadline if fall_at is None else min(self._silence.deadline, fall_at)
        if self.link is _FULL:
            return at
        leftmost = self.log.leftmost()
        if leftmost is not None:
            at = min(at, self._resend_at(leftmost))
            stall_at = self._moved_at + self.rules.heartbeat.stream
            if stall_at > now:
                at = min(at, stall_at)
        checkpoint_at = self.checkpoints.deadline
        return at if checkpoint_at is None else min(at, checkpoint_at)
