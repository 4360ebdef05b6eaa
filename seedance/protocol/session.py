"""A session on the server's side (§2–§4): what its client asks, and who carries it.

    PROVISIONAL ──first generate──► LIVE ──close──► CLOSING ──last bill known──► OVER
         └─────── connection gone ───►└────────────── expiry ───────────────────►

A session closes at once unless its client has the end of a stream whose bill its owner does not know yet,
since it took the session over meanwhile: that stream is heard again to its end first (§4.9).

`step(event, now)` returns what the host has to do, in order. Text is put into frames only when the
host says `Pump` (or when an `ack` or a freed transport makes room), so that what arrives in one turn
of its loop leaves in one frame per stream.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

from seedance.protocol.delivery import Delivery, LinkState, SessionRules
from seedance.protocol.effects import CloseLink, Effect, SessionOver
from seedance.protocol.errors import CloseCode, ErrorCode, SeedanceError
from seedance.protocol.events import (
    Expired,
    FromInstance,
    LinkDown,
    LinkUp,
    LinkWritable,
    Pump,
    Refused,
    ResumeOn,
    SessionEvent,
    Stored,
    StoreLevel,
    Tick,
)
from seedance.protocol.frames import (
    Ack,
    Cancel,
    Close,
    Generate,
    Ping,
    Pong,
    Resume,
    Resumed,
    Usage,
)
from seedance.protocol.log import FrameLog
from seedance.protocol.resume import check_resume, unknown_session
from seedance.protocol.stream import StreamMachine, error_frame
from seedance.protocol.streams import StreamSet

__all__ = ["SessionMachine", "SessionRules", "SessionState"]


class SessionState(Enum):
    """Where a session is; `PROVISIONAL` means that nobody but this connection knows it."""

    PROVISIONAL = "provisional"
    LIVE = "live"
    CLOSING = "closing"
    OVER = "over"


class _Input(Enum):
    GENERATE = "generate"
    LINK_DOWN = "link_down"
    CLOSE = "close"
    END = "end"


_NEXT: dict[tuple[SessionState, _Input], SessionState] = {
    (SessionState.PROVISIONAL, _Input.GENERATE): SessionState.LIVE,
    (SessionState.PROVISIONAL, _Input.LINK_DOWN): SessionState.OVER,
    (SessionState.PROVISIONAL, _Input.END): SessionState.OVER,
    (SessionState.LIVE, _Input.CLOSE): SessionState.CLOSING,
    (SessionState.LIVE, _Input.END): SessionState.OVER,
    (SessionState.CLOSING, _Input.END): SessionState.OVER,
}

# By a name of its own: to look a member up in its enum costs ten times a global (Python 3.11).
_CLOSING, _OVER = SessionState.CLOSING, SessionState.OVER
_DOWN = LinkState.DOWN


# Events after which text may have room to leave.
_PUMPING = frozenset({Pump, ResumeOn, LinkWritable, Stored, Tick})
# What a session still hears when its client has closed it.
_AFTER_CLOSE = frozenset({FromInstance, StoreLevel, Stored, Pump, Tick, Expired, LinkDown})


class SessionMachine:
    """One session. `log`, `live` and `ended` come from a former owner by way of the store."""

    __slots__ = ("_down_at", "_restored", "delivery", "rules", "session", "state", "streams")

    def __init__(
        self,
        session: str,
        rules: SessionRules,
        now: float,
        *,
        log: FrameLog | None = None,
        live: dict[str, StreamMachine] | None = None,
        ended: dict[str, str] | None = None,
    ) -> None:
        self.session = session
        self.rules = rules
        self.delivery = Delivery(rules, now, log)
        self.streams = StreamSet(session, self.delivery, live or {}, ended or {})
        self._restored = log is not None
        self.state = SessionState.LIVE if self._restored else SessionState.PROVISIONAL
        self._down_at = now

    def step(self, event: SessionEvent, now: float) -> list[Effect]:
        """Take an event, return what is to be done."""
        if self.state is _OVER or (self.state is _CLOSING and type(event) not in _AFTER_CLOSE):
            return []
        self._HANDLERS[type(event)](self, event, now)
        if type(event) in _PUMPING and not self.over:
            self.streams.pump(now)
        # A stall is noticed when time says so.
        return self._out(now, look=isinstance(event, Tick))

    def pump(self, now: float) -> list[Effect]:
        """As the event `Pump`, which is most of what happens."""
        if self.state is _OVER:
            return []
        self.streams.pump(now)
        return self._out(now)

    def _out(self, now: float, *, look: bool = False) -> list[Effect]:
        delivery, streams = self.delivery, self.streams
        # What an instance asks for does not wait for the pump.
        if look or streams.pressed or streams.full or not delivery.pressure.calm:
            delivery.press(streams.pressure(now), now)
        out, delivery.out = delivery.out, []
        return out

    def acknowledged(self, seq: int, now: float) -> list[Effect]:
        """As the event `Ack(seq)`, which comes with every few tokens."""
        if self.state is _OVER:
            return []
        self._acknowledge(seq, now)
        return self._out(now)

    def stored(self, seq: int, wall_ms: int, now: float) -> tuple[list[Effect], float | None]:
        """As the event `Stored` for which no stream has waited: only a checkpoint may be due.

        Many times a second, so it asks for nothing else. Also returns when to `Tick` for the next one.
        """
        delivery = self.delivery
        if self.over:
            return [], None
        delivery.checkpoints.stored(seq, wall_ms, now)
        delivery.checkpoint(now)
        out, delivery.out = delivery.out, []
        return out, delivery.checkpoints.deadline

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state is _OVER

    def deadline(self, now: float) -> float | None:
        """When to `Tick` next; None: nothing waits for time."""
        if self.delivery.link is _DOWN:
            return self._down_at + self.rules.resume_ttl_s
        return self.delivery.deadline(now)

    def check_resume(self, resume: Resume, *, confirmed: bool = True) -> None:
        """Whether `ResumeOn` may follow. Raises `ResumeFault`; the session stays as it is.

        `confirmed`: no other gateway can have carried the session meanwhile, and numbered frames.
        """
        if self.state is _CLOSING:
            raise unknown_session()
        behind = self._restored or not confirmed
        check_resume(resume, self.delivery.log, restored=behind)

    def _move(self, what: _Input) -> None:
        self.state = _NEXT.get((self.state, what), self.state)

    def _on_generate(self, frame: Generate, now: float) -> None:
        self.delivery.heard(now)
        if self.streams.generate(frame, now):
            self._move(_Input.GENERATE)

    def _on_ack(self, frame: Ack, now: float) -> None:
        self._acknowledge(frame.seq, now)
        self.delivery.log.mark_received(frame.sack)

    def _acknowledge(self, seq: int, now: float) -> None:
        delivery, streams = self.delivery, self.streams
        delivery.heard(now)
        if seq > delivery.log.next_seq:
            following = delivery.log.next_seq
            self._refuse("seq", f"`seq` must be at most {following}, the next number", now)
            return
        delivery.acknowledge(seq, now)
        # Else no stream has waited for the window, and what there is to give is given with its next token.
        if streams.full or streams.short:
            streams.pump(now)

    def _on_cancel(self, frame: Cancel, now: float) -> None:
        self.delivery.heard(now)
        self.streams.cancel(frame.id, now)

    def _on_ping(self, frame: Ping, now: float) -> None:
        self.delivery.heard(now)
        self.delivery.control(Pong(frame.t))

    def _on_heard(self, _frame: Pong, now: float) -> None:
        self.delivery.heard(now)

    def _on_late_resume(self, _frame: Resume, now: float) -> None:
        # A second replay would say everything twice (CASES 50).
        self.delivery.heard(now)
        self._refuse("type", "`type` must not be `resume` after the first message", now)

    def _on_refused(self, event: Refused, now: float) -> None:
        self.delivery.heard(now)
        # A refused `generate` is the end of a stream that never began, unless its id is in use.
        fresh = event.stream is not None and event.stream not in self.streams.live
        usage = Usage() if fresh else None
        self.delivery.sequenced(error_frame(event.error, stream=event.stream, usage=usage), now)

    def _refuse(self, field: str, message: str, now: float) -> None:
        error = SeedanceError(ErrorCode.BAD_REQUEST, message, field=field)
        self.delivery.sequenced(error_frame(error), now)

    def _on_close(self, _frame: Close, now: float) -> None:
        self.delivery.out.append(CloseLink(CloseCode.NORMAL, "closed"))
        self.delivery.down()
        self._down_at = now
        if self.streams.finish_untold():
            self._move(_Input.CLOSE)
        else:
            self._end()

    # ------------------------------------------------------------ the link

    def _on_link_up(self, event: LinkUp, now: float) -> None:
        self.delivery.up(windowed=event.windowed, now=now)
        self.delivery.control(event.hello)

    def _on_resume(self, event: ResumeOn, now: float) -> None:
        last_seq, log = event.resume.last_seq, self.delivery.log
        # A former owner may have sent more than it stored: a number that the client processed
        # never comes again with other bytes (§4.5).
        log.next_seq = max(log.next_seq, last_seq + 1)
        self.delivery.up(windowed=event.windowed, now=now)
        self.delivery.control(Resumed(last_seq + 1, event.hello))
        self.delivery.replay(last_seq, now)
        self.streams.resume(event.resume, now)
        if self._restored:
            self._restored = False
            self.streams.recover_restored(now)

    def _on_link_down(self, _event: LinkDown, now: float) -> None:
        self.delivery.down()
        self._down_at = now
        self.streams.detach(now)
        self._move(_Input.LINK_DOWN)
        self._end_if_useless()

    def _on_writable(self, event: LinkWritable, _now: float) -> None:
        self.delivery.writable(writable=event.writable)

    # ------------------------------------------------------------ store, instances, time

    def _on_store_level(self, event: StoreLevel, now: float) -> None:
        self.delivery.checkpoints.level(committed=event.committed, wall_ms=event.wall_ms, now=now)
        self.delivery.checkpoint(now)

    def _on_stored(self, event: Stored, now: float) -> None:
        for name in event.streams:
            if name in self.streams.live:
                self.streams.live[name].stored = True
        self.delivery.checkpoints.stored(event.seq, event.wall_ms, now)
        self.delivery.checkpoint(now)

    def _on_instance(self, event: FromInstance, now: float) -> None:
        self.streams.on_instance(event, now)
        self._end_if_useless()

    def _on_pump(self, _event: Pump, _now: float) -> None:
        """Everything is done by `step`, after this."""

    def _on_tick(self, event: Tick, now: float) -> None:
        if self.delivery.link is not _DOWN:
            if event.piece_at is not None:
                self.delivery.received(event.piece_at)
            self.delivery.tick(now, idle=event.idle)
        elif now >= self._down_at + self.rules.resume_ttl_s:
            self._end()

    def _on_expired(self, _event: Expired, _now: float) -> None:
        self._end()

    def _end_if_useless(self) -> None:
        """Without a connection, a simple client's session is over when nothing of it runs."""
        gone, streams = self.delivery.link is _DOWN, self.streams
        closed = self.state is _CLOSING and streams.all_settled()
        if self.over or closed or (gone and not self.delivery.windowed and not streams.unsettled()):
            self._end()

    def _end(self) -> None:
        self.streams.finish_all()
        self._move(_Input.END)
        self.delivery.out.append(SessionOver())

    _HANDLERS: ClassVar[dict[type, Callable[[SessionMachine, Any, float], None]]] = {
        Generate: _on_generate,
        Ack: _on_ack,
        Cancel: _on_cancel,
        Ping: _on_ping,
        Pong: _on_heard,
        Resume: _on_late_resume,
        Close: _on_close,
        Refused: _on_refused,
        FromInstance: _on_instance,
        LinkUp: _on_link_up,
        ResumeOn: _on_resume,
        LinkDown: _on_link_down,
        LinkWritable: _on_writable,
        StoreLevel: _on_store_level,
        Stored: _on_stored,
        Pump: _on_pump,
        Tick: _on_tick,
        Expired: _on_expired,
    }
