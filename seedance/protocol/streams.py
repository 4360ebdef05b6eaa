"""The live streams of a session: opened, credited, framed in turn, and ended (§2–§4)."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace

from seedance.protocol.delivery import Delivery, LinkState
from seedance.protocol.effects import (
    CancelUpstream,
    Effect,
    Fenced,
    Finished,
    Grant,
    OpenUpstream,
    RecoverUpstream,
)
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.events import (
    FromInstance,
    UpstreamAccepted,
    UpstreamBroken,
    UpstreamDone,
    UpstreamFailed,
    UpstreamPressure,
    UpstreamTokens,
)
from seedance.protocol.frames import Generate, Resume, Token, Usage
from seedance.protocol.json_codec import encode_client
from seedance.protocol.pressure import FREE, Pressed, PressureLevel, highest
from seedance.protocol.request import check_in_one_frame
from seedance.protocol.resume import gap, place_streams
from seedance.protocol.stream import StreamMachine, StreamState, error_frame
from seedance.protocol.window import CREDIT_MAX, credit_share

__all__ = ["StreamSet", "fingerprint_of", "with_seed"]

_SEED_MASK = 2**63 - 1


# By a name of its own: to look a member up in its enum costs ten times a global (Python 3.11).
_RUNNING, _SETTLED = StreamState.RUNNING, StreamState.SETTLED
_OPEN = LinkState.OPEN


def fingerprint_of(frame: Generate) -> str:
    """What makes two `generate` frames the same: everything but their id, form and trace."""
    content = encode_client(replace(frame, id=None, traceparent=None, bare=False))
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def with_seed(frame: Generate, generation: str) -> Generate:
    """The frame with a seed, so that another instance can go on as the first one would have.

    The seed is made from the generation's name, which holds the session's random id.
    """
    if frame.request.sampling.seed is not None:
        return frame
    seed = int.from_bytes(hashlib.sha256(generation.encode()).digest()[:8], "big") & _SEED_MASK
    sampling = replace(frame.request.sampling, seed=seed)
    return replace(frame, request=replace(frame.request, sampling=sampling))


class StreamSet:
    """Streams by id, in the order in which they were opened; and the ids of those that are over.

    `full`: the last pump ended for want of room, not of text; `short`: it could not give all the credit that a
    stream may have. `pressed`: what instances of live ones ask.
    """

    def __init__(
        self,
        session: str,
        delivery: Delivery,
        live: dict[str, StreamMachine],
        ended: dict[str, str],
    ) -> None:
        self.live = live
        # id to fingerprint, oldest first: a repeated `generate` must not run again.
        self.ended = OrderedDict(ended)
        self._session = session
        self._delivery = delivery
        self._rules = delivery.rules
        self.full = self.short = False
        self.pressed: dict[str, Pressed] = {}
        self._assigned = 0
        self._turn = 0

    @property
    def forgets(self) -> bool:
        """Whether it may have forgotten an end, so that a new stream may have an old one's id (§3)."""
        return len(self.ended) >= self._rules.ended_max

    def knows(self, name: str | None) -> bool:
        """Whether the session has, or remembers, a stream of that id: it will not be run again (§3)."""
        return name in self.live or name in self.ended

    def generate(self, frame: Generate, now: float) -> bool:
        """Open a stream, or answer a repeated id (§3); whether one was opened."""
        frame = frame if frame.id else replace(frame, id=self._new_id())
        name = frame.id or ""
        fingerprint = fingerprint_of(frame)
        known = self.live[name].fingerprint if name in self.live else self.ended.get(name)
        if known == fingerprint:
            self._delivery.resend(name)
        elif known is not None:
            other = "`id` must be new in the session: it names a stream of other content"
            error = SeedanceError(ErrorCode.BAD_REQUEST, other, field="id")
            self._delivery.sequenced(error_frame(error, stream=name), now)
        elif len(self.live) >= self._rules.streams_max:
            many = f"a session has at most {self._rules.streams_max} streams at once"
            error = SeedanceError(ErrorCode.OVERLOADED, many)
            self._delivery.sequenced(error_frame(error, stream=name, usage=Usage()), now)
        else:
            self._open(frame, fingerprint, now)
            return True
        return False

    def _new_id(self) -> str:
        while True:
            self._assigned += 1
            name = f"stream-{self._assigned}"
            if name not in self.live and name not in self.ended:
                return name

    def _open(self, frame: Generate, fingerprint: str, now: float) -> None:
        default = "keep" if self._delivery.windowed else "cancel"
        wants = replace(frame, on_disconnect=frame.on_disconnect or default)
        stream = StreamMachine(with_seed(wants, f"{self._session}/{frame.id}"), fingerprint)
        stream.stopwatch.asked = now
        self.live[stream.id] = stream
        stream.allowed_tokens = self._share(now)
        self._delivery.out.append(OpenUpstream(stream.id, stream.allowed_tokens))

    def cancel(self, name: str, now: float) -> None:
        """End a stream: once more is nothing, an unknown one is an error (CASES 28)."""
        stream = self.live.get(name)
        if stream is not None:
            if stream.cancel():
                self._delivery.out.append(CancelUpstream(name))
            self._settle(stream, now)
        elif name not in self.ended:
            error = SeedanceError(ErrorCode.UNKNOWN_STREAM, "no stream of this session has this id")
            self._delivery.sequenced(error_frame(error, stream=name), now)

    def resume(self, resume: Resume, now: float) -> None:
        """Go on at the client's offsets; streams of a former owner are looked for again."""
        for name, error in place_streams(resume, self._delivery.log, self.live).items():
            if self.live[name].fail(error):
                self._delivery.out.append(CancelUpstream(name))
        unacknowledged = {entry.frame.id for entry in self._delivery.log}
        for name, has in resume.offsets.items():
            if not self._delivery.open:
                return  # the answers until now, unread, have ended the connection
            lost = has > 0 or (has == 0 and name in self.ended)
            if lost and name not in self.live and name not in unacknowledged:
                error = gap("this session has no such open stream", f"offsets.{name}")
                self._delivery.sequenced(error_frame(error, stream=name, usage=Usage()), now)

    def recover_restored(self, now: float) -> None:
        """Find the instances of streams that came from the store."""
        for stream in self.live.values():
            if stream.state is StreamState.RECOVERING:
                self._ask_recovery(stream, now)

    def on_instance(self, event: FromInstance, now: float) -> None:
        """Hand an instance's word to its stream."""
        stream = self.live.get(event.stream)
        if stream is None:
            return
        what = event.what
        match what:
            case UpstreamTokens():
                self._take(stream, what, now)
            case UpstreamAccepted():
                stream.on_accepted(what)
            case UpstreamPressure(level, reason):
                self._press(stream.id, level, reason)
            case UpstreamBroken():
                self.pressed.pop(stream.id, None)
                if stream.on_broken():
                    self._ask_recovery(stream, now)
            case UpstreamFailed(error) if error.code is ErrorCode.SESSION_EXPIRED:
                # An instance refuses an epoch that is not the newest: another gateway owns this.
                self._delivery.out.append(Fenced())
            case UpstreamDone() | UpstreamFailed():
                stream.on_finish(what)
        self._settle(stream, now)

    def _ask_recovery(self, stream: StreamMachine, now: float) -> None:
        share = CREDIT_MAX if stream.mute else self._share(now)
        stream.allowed_tokens = len(stream.text.token_ids) + share
        self._delivery.out.append(RecoverUpstream(stream.id, share))

    def pump(self, now: float) -> None:
        """Frame what may be framed, one frame per stream and round; then give credit."""
        self._turn += 1
        delivery, turn = self._delivery, _in_turn(self.live, self._turn)
        ending = bool(self.pressed)
        for stream in turn:
            ending = ending or stream.state is not _RUNNING
        # What a frame takes of the window; a simple client has none.
        free, each = delivery.free, 1 if delivery.windowed else 0
        while turn and delivery.link is _OPEN:
            again = []
            for stream in turn:
                if (frame := stream.next_frame(window_open=free > 0)) is None:
                    continue
                if type(frame) is Token:
                    stream.stopwatch.frame(now)
                    delivery.token(frame, now)
                else:
                    delivery.sequenced(frame, now)
                free -= each
                if stream.more:
                    again.append(stream)
            turn = again
        self.full = free <= 0 and bool(self.live)
        if ending:
            for stream in list(self.live.values()):
                self._settle(stream, now)
            free = delivery.free
        self._grant(now, free)

    def _settle(self, stream: StreamMachine, now: float) -> None:
        """Take a stream to its end as far as it goes: settled, told, forgotten."""
        if self.pressed and not stream.wanted:
            self.pressed.pop(stream.id, None)
        linked = self._delivery.open and stream.tellable
        settled = stream.settle(linked=linked)
        if stream.state is StreamState.SETTLED and linked:
            frame = stream.end_frame(now)
            if frame is not None:
                self._delivery.sequenced(frame, now)
            del self.live[stream.id]
            self.ended[stream.id] = stream.fingerprint
            if len(self.ended) > self._rules.ended_max:
                self.ended.popitem(last=False)
        if settled:
            self._delivery.out.append(Finished(stream.id, stream.reason, stream.usage()))

    def _share(self, now: float) -> int:
        free = 0 if self._delivery.stalled(now) else self._delivery.free
        return credit_share(free, len(self.live))

    def _grant(self, now: float, free: int) -> None:
        delivery, half = self._delivery, credit_share(free, len(self.live)) // 2
        self.short = False
        for stream in self.live.values():
            # Nearly always a stream has more than half of its share, and nothing else is asked.
            if stream.allowed_tokens - len(stream.text.token_ids) > half:
                continue
            # What is heard again fills no window.
            share = CREDIT_MAX if stream.mute else self._share(now)
            self.short = self.short or share < CREDIT_MAX
            missing, linked = stream.credit_missing(share), delivery.link is not LinkState.DOWN
            # A collected text fills no window: without a connection it would never pause (§4.7).
            fills = linked or stream.wants.stream or stream.mute
            if share and missing > 0 and stream.creditable and fills:
                stream.allowed_tokens += missing
                delivery.out.append(Grant(stream.id, missing))

    def pressure(self, now: float) -> Pressed:
        """The highest level that an instance asks for, or that the client's own window amounts to."""
        own = _own_pressure(self._delivery, now) if self.live else FREE
        return highest(own, *self.pressed.values()) if self.pressed else own

    def _take(self, stream: StreamMachine, tokens: UpstreamTokens, now: float) -> None:
        if not stream.on_tokens(tokens):
            if stream.on_broken():
                self._ask_recovery(stream, now)
        elif not stream.wants.stream:
            # One without `max_tokens` may grow beyond what a frame can hold.
            try:
                check_in_one_frame(stream.wants.request, len(stream.text.token_ids))
            except SeedanceError as error:
                if stream.fail(error):
                    self._delivery.out.append(CancelUpstream(stream.id))

    def _press(self, name: str, level: PressureLevel, reason: str) -> None:
        self.pressed.pop(name, None)
        if level is not PressureLevel.NONE:
            self.pressed[name] = (level, reason)

    def unsettled(self) -> bool:
        """Whether any stream's end is still to come or to be told to a client that may return."""
        return any(s.keep or s.state is not _SETTLED for s in self.live.values())

    def all_settled(self) -> bool:
        """Whether every stream's bill is known."""
        return all(s.state is _SETTLED for s in self.live.values())

    def detach(self, now: float) -> None:
        """The connection is gone: streams that were not to outlive it end."""
        for stream in list(self.live.values()):
            if not stream.keep:
                self.cancel(stream.id, now)

    def finish_all(self) -> None:
        """The session ends: stop what runs, and settle every bill."""
        self.finish_untold()
        for stream in self.live.values():
            self._delivery.out += _ended_now(stream)
        self.live.clear()

    def finish_untold(self) -> bool:
        """As `finish_all`, but for what the client has to its end: whether such is to be heard again."""
        told = {name: s for name, s in self.live.items() if s.mute and s.state is not _SETTLED}
        for name in [name for name in self.live if name not in told]:
            self._delivery.out += _ended_now(self.live.pop(name))
        return bool(told)


def _ended_now(stream: StreamMachine) -> list[Effect]:
    """Stop it if it runs, and bill what is known of it, unless that was done."""
    if stream.state is _SETTLED:
        return []
    running = stream.cancel() or (stream.mute and stream.wanted)
    stop: list[Effect] = [CancelUpstream(stream.id)] if running else []
    return [*stop, Finished(stream.id, stream.reason, stream.usage())]


def _in_turn(live: dict[str, StreamMachine], turn: int) -> list[StreamMachine]:
    """The streams, each time beginning with another: the window's rest is nobody's right."""
    streams = list(live.values())
    if len(streams) < 2:  # noqa: PLR2004 - one needs no turns
        return streams
    first = turn % len(streams)
    return streams[first:] + streams[:first]


def _own_pressure(delivery: Delivery, now: float) -> Pressed:
    """What the client's own window amounts to while streams run."""
    if not delivery.windowed:
        return FREE
    if delivery.stalled(now):
        return PressureLevel.PAUSE, "nothing is acknowledged: the streams pause"
    if delivery.free <= 0:
        return PressureLevel.THROTTLE, "the window is full: acknowledge what has arrived"
    return FREE
