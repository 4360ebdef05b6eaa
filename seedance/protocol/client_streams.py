"""A client's streams: what was asked, what is known to the server, and how far the text came."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum

from seedance.protocol.client_events import Deliver, Effect, Send
from seedance.protocol.errors import ERRORS, ErrorCode, SeedanceError
from seedance.protocol.frames import (
    Accepted,
    Cancel,
    ClientFrame,
    Done,
    ErrorFrame,
    Flush,
    Generate,
    SequencedFrame,
    Timing,
    Token,
    Usage,
)

__all__ = ["ENDED_MAX", "LIVE_MAX", "STREAMS_MAX", "ClientStreams"]

# Generations that a client holds at once, running or waiting for a connection or their turn.
STREAMS_MAX = 1024
# Those that a session has at once (§2); one more would be refused, so it waits here.
LIVE_MAX = 64
# Ended streams whose end a resume still tells; a server remembers as many (§3).
ENDED_MAX = 1024


class _StreamState(Enum):
    WAITING = "waiting"  # no session knows of it
    SENT = "sent"  # a session may know of it: it is sent again after a resume
    ACCEPTED = "accepted"  # a session has it


@dataclass(slots=True)
class _Stream:
    id: str
    frame: Generate
    state: _StreamState = _StreamState.WAITING
    offset: int = 0  # bytes of UTF-8 handed on
    aborted: bool = False

    def place(self, token: Token) -> Token | None:
        """The part of a delta that is new, if any is. Raises `resume_gap` where bytes lack."""
        text = token.delta.encode()
        known = self.offset - token.offset
        if known == 0:
            self.offset += len(text)
            return token
        if known < 0:
            raise SeedanceError(ErrorCode.RESUME_GAP, "a part of the text is missing")
        try:
            rest = text[known:].decode()
        except UnicodeDecodeError:
            raise SeedanceError(ErrorCode.RESUME_GAP, "the text was cut differently") from None
        token = replace(token, offset=self.offset, delta=rest)
        self.offset += len(text[known:])
        return token if rest else None


class ClientStreams:
    """The streams of one client that have not ended, and the lately ended ids of its session."""

    def __init__(self) -> None:
        self._live: dict[str, _Stream] = {}
        self._ended: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def started(self) -> bool:
        """Whether a session may know any of them."""
        return any(stream.state is not _StreamState.WAITING for stream in self._live.values())

    @property
    def unsettled(self) -> bool:
        """Whether a resume is of use: one runs, or the store may not know of an end and its bill (§4.9)."""
        return self.started or bool(self._ended)

    def any_live(self, ids: AbstractSet[str]) -> bool:
        """Whether one of these has not ended."""
        return not self._live.keys().isdisjoint(ids)

    def add(self, frame: Generate) -> None:
        """A new generation. Raises `overloaded` at the bound."""
        stream_id = frame.id
        assert stream_id is not None  # noqa: S101
        assert stream_id not in self._live.keys() | self._ended.keys()  # noqa: S101
        if len(self._live) >= STREAMS_MAX:
            raise SeedanceError(
                ErrorCode.OVERLOADED,
                f"this client already holds {STREAMS_MAX} generations: wait for one to end",
            )
        self._live[stream_id] = _Stream(stream_id, frame)

    def unheard(self) -> list[ClientFrame]:
        """What a session that just opened has to hear, oldest first.

        A stream of which nothing was heard but `accepted` is asked for again: that may have been
        said while the store was away, by a gateway that is gone (§4.4). Whoever knows it does not
        run it twice.
        """
        frames: list[ClientFrame] = []
        for stream_id, stream in self._live.items():
            if stream.state is not _StreamState.WAITING and not stream.offset:
                frames.append(stream.frame)
            if stream.aborted:
                frames.append(Cancel(stream_id))
        return frames + self.waiting()

    def waiting(self) -> list[ClientFrame]:
        """The generations whose turn has come, oldest first: as many as the session has room for."""
        waiting = [s for s in self._live.values() if s.state is _StreamState.WAITING]
        room = max(0, LIVE_MAX - (len(self._live) - len(waiting)))
        for stream in waiting[:room]:
            stream.state = _StreamState.SENT
        return [stream.frame for stream in waiting[:room]]

    def abort(self, stream_id: str, *, connected: bool) -> list[Effect]:
        """The user wants no more of it: told now, or when a connection stands again.

        `connected`: it stands, and no longer on probation, on which its `generate` may be unheard.
        """
        stream = self._live.get(stream_id)
        if stream is None or stream.aborted:
            return []
        stream.aborted = True
        if stream.state is _StreamState.WAITING:
            del self._live[stream_id]
            return [Deliver(Done(stream_id, "cancelled", Usage(), Timing()))]
        return [Send(Cancel(stream_id))] if connected else []

    def take(self, frame: SequencedFrame, seq: int) -> list[Effect]:
        """Take a frame whose turn has come; a stream's second `accepted` or end is dropped."""
        stream = self._live.get(frame.id) if frame.id is not None else None
        if stream is None:
            return []
        match frame:
            case Accepted():
                if stream.state is _StreamState.ACCEPTED:
                    return []
                stream.state = _StreamState.ACCEPTED
            case Token():
                return self._take_token(stream, frame, seq)
            case ErrorFrame(usage=usage):
                # With `usage` it is an end (§3), and so is the refusal of a `generate`.
                if usage is None and stream.state is _StreamState.ACCEPTED:
                    return []
                self._end(stream.id, seq)
            case Done():
                self._end(stream.id, seq)
            case Flush():
                pass
        return [Deliver(frame)]

    def _take_token(self, stream: _Stream, token: Token, seq: int) -> list[Effect]:
        try:
            fresh = stream.place(token)
        except SeedanceError as gap:
            self._end(token.id, seq)
            return [Send(Cancel(token.id)), Deliver(_error(token.id, gap.code, gap.message))]
        return [] if fresh is None else [Deliver(fresh)]

    def _end(self, stream_id: str, seq: int) -> None:
        del self._live[stream_id]
        self._ended[stream_id] = seq
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def offsets(self) -> dict[str, int]:
        """`resume.offsets`: bytes processed of what is open, -1 for what has ended."""
        live = {
            stream_id: stream.offset
            for stream_id, stream in self._live.items()
            if stream.state is not _StreamState.WAITING
        }
        return live | dict.fromkeys(self._ended, -1)

    def committed(self, sequence_id: int) -> None:
        """A checkpoint: ends up to it need not be told any more."""
        self._ended = {i: seq for i, seq in self._ended.items() if seq > sequence_id}

    def lose_session(self, code: ErrorCode, message: str) -> list[Effect]:
        """The session is gone, and with it what it had; what it never had may go to another."""
        self._ended.clear()
        lost = [i for i, s in self._live.items() if s.state is _StreamState.ACCEPTED]
        for stream_id in lost:
            del self._live[stream_id]
        for stream in self._live.values():
            stream.state = _StreamState.WAITING
        return [Deliver(_error(stream_id, code, message)) for stream_id in lost]

    def fail(self, code: ErrorCode, message: str) -> list[Effect]:
        """Every stream ends here, with an error."""
        lost = list(self._live)
        self._live.clear()
        self._ended.clear()
        return [Deliver(_error(stream_id, code, message)) for stream_id in lost]


def _error(stream_id: str, code: ErrorCode, message: str) -> ErrorFrame:
    return ErrorFrame(code, message, ERRORS[code].retryable, id=stream_id)
