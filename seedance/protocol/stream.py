"""One generation inside a session, on the server's side: from `accepted` to its one end (§2–§4).

    OPENING ──accepted──► RUNNING ◄──accepted── RECOVERING
       │                     │  └──broken──────────►│
       └──────finish─────────┴──────finish──────────┤
    CANCELLING ◄──cancel── (any of the three)       ▼
         └────────────finish or broken─────────► DRAINING ──text framed──► SETTLED ──told──► ENDED

Settled means that what it costs is known; the end frame leaves when there is a connection.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import Enum
from typing import Any

from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.events import (
    UpstreamAccepted,
    UpstreamDone,
    UpstreamFailed,
    UpstreamTokens,
)
from seedance.protocol.flush import FlushHints
from seedance.protocol.frames import (
    Accepted,
    Done,
    ErrorFrame,
    Flush,
    Generate,
    SequencedFrame,
    Timing,
    TokenLogprob,
    Usage,
)
from seedance.protocol.receipt import SignReceipt, TextDigest
from seedance.protocol.stopwatch import Stopwatch
from seedance.protocol.text import TextBuffer, TextGapError

__all__ = ["Parting", "StreamInput", "StreamMachine", "StreamState", "error_frame"]


Logprobs = tuple[TokenLogprob, ...] | None
# What a client is told when whoever refused named no time.
RETRY_AFTER_MS = 1000


class StreamState(Enum):
    """Where a stream is."""

    OPENING = "opening"
    RUNNING = "running"
    RECOVERING = "recovering"
    CANCELLING = "cancelling"
    DRAINING = "draining"
    SETTLED = "settled"
    ENDED = "ended"


class StreamInput(Enum):
    """What moves it."""

    ACCEPTED = "accepted"
    BROKEN = "broken"
    CANCEL = "cancel"
    FINISH = "finish"
    SETTLE = "settle"
    TOLD = "told"


class Parting(Enum):
    """`LEAVES`: to be cancelled once what its client has was heard again. `TOLD`: its client has even its end."""

    STAYS = "stays"
    LEAVES = "leaves"
    TOLD = "told"


_S, _I = StreamState, StreamInput
# What is not in the table changes nothing: a late word about something that is over already.
_NEXT: dict[tuple[StreamState, StreamInput], StreamState] = {
    (_S.OPENING, _I.ACCEPTED): _S.RUNNING,
    (_S.OPENING, _I.BROKEN): _S.RECOVERING,
    (_S.OPENING, _I.CANCEL): _S.CANCELLING,
    (_S.OPENING, _I.FINISH): _S.DRAINING,
    (_S.RUNNING, _I.BROKEN): _S.RECOVERING,
    (_S.RUNNING, _I.CANCEL): _S.CANCELLING,
    (_S.RUNNING, _I.FINISH): _S.DRAINING,
    (_S.RECOVERING, _I.ACCEPTED): _S.RUNNING,
    (_S.RECOVERING, _I.BROKEN): _S.RECOVERING,
    (_S.RECOVERING, _I.CANCEL): _S.CANCELLING,
    (_S.RECOVERING, _I.FINISH): _S.DRAINING,
    (_S.CANCELLING, _I.BROKEN): _S.DRAINING,
    (_S.CANCELLING, _I.FINISH): _S.DRAINING,
    (_S.DRAINING, _I.CANCEL): _S.DRAINING,
    (_S.DRAINING, _I.SETTLE): _S.SETTLED,
    (_S.SETTLED, _I.TOLD): _S.ENDED,
}

_HEARING = frozenset({_S.OPENING, _S.RUNNING, _S.RECOVERING})
_CREDITABLE = frozenset({_S.OPENING, _S.RUNNING})


# By a name of its own: to look a member up in its enum costs ten times a global (Python 3.11).
_TOLD = Parting.TOLD
_RUNNING, _CANCELLING, _ENDED = StreamState.RUNNING, StreamState.CANCELLING, StreamState.ENDED


class StreamMachine:
    """A stream's state, its text, and the frames that are due.

    `stored`: its opening is in the session store, or need not be waited for. `traceparent` and `sign`
    are the host's: the span that the stream's work belongs to, and who signs its receipt, if anybody.
    """

    def __init__(self, wants: Generate, fingerprint: str) -> None:
        assert wants.id is not None  # noqa: S101 - the session has given it one
        self.id = wants.id
        self.wants = wants
        self.fingerprint = fingerprint
        self.state = StreamState.OPENING
        self.text = TextBuffer(digest=TextDigest() if wants.receipt else None)
        self.stopwatch = Stopwatch()
        self.accepted: UpstreamAccepted | None = None
        self.end: UpstreamDone | UpstreamFailed | None = None
        self.stored = False
        self.told_accepted = False
        self.traceparent = ""
        self.allowed_tokens = 0
        self.sign: SignReceipt | None = None
        self._hints = FlushHints()
        self.parting = Parting.STAYS

    def restore(
        self,
        text: TextBuffer,
        *,
        told_accepted: bool,
        end: UpstreamDone | UpstreamFailed | None = None,
    ) -> None:
        """Go on where a former owner left it; the instance is yet to be found.

        `end`: it was settled, and only the telling is left. What it costs is known and billed, so
        nothing of its text may follow, though an instance may have more of it.
        """
        self.text = text
        self.stored = True
        self.told_accepted = told_accepted
        self.end = end
        self.state = StreamState.RECOVERING if end is None else StreamState.SETTLED

    # ------------------------------------------------------------ what is heard

    @property
    def keep(self) -> bool:
        """Whether it outlives the connection; the session has written the default into it."""
        return self.wants.on_disconnect == "keep"

    def move(self, what: StreamInput) -> bool:
        """Apply the table; whether anything was to be applied."""
        after = _NEXT.get((self.state, what))
        if after is None:
            return False
        self.state = after
        return True

    def on_accepted(self, accepted: UpstreamAccepted) -> None:
        """An instance has taken it, for the first time or again."""
        self.accepted = accepted
        self.text.prompt_tokens = accepted.prompt_tokens or self.text.prompt_tokens
        self.move(StreamInput.ACCEPTED)

    def on_tokens(self, tokens: UpstreamTokens) -> bool:
        """Tokens arrived; False: something is missing before them, as if the call had broken."""
        if self.state not in _HEARING:
            return True
        if self.text.append(tokens):
            return True
        try:
            self.text.receive(tokens)
        except TextGapError:
            return False
        return True

    def append(self, tokens: UpstreamTokens) -> bool:
        """`on_tokens` in the usual case, of which nothing but text follows; False: it is not."""
        usual = self.state is _RUNNING and self.wants.stream
        return usual and self.text.append(tokens)

    def on_finish(self, end: UpstreamDone | UpstreamFailed) -> None:
        """It ended at the instance, well or badly."""
        cancelling = self.state is _CANCELLING
        if not self.move(StreamInput.FINISH):
            return
        self.end = (
            replace(end, finish_reason="cancelled")
            if cancelling and isinstance(end, UpstreamDone)
            else end
        )
        if cancelling and isinstance(end, UpstreamFailed):
            self.end = _cancelled(end.usage)
        elif isinstance(end, UpstreamDone) and self.text.behind and self.parting is not _TOLD:
            # The client says that it has more than the whole text: it is not the same text.
            self.end = UpstreamFailed(_gap())

    def on_broken(self) -> bool:
        """Its call broke; whether it has to be recovered."""
        cancelling = self.state is _CANCELLING
        moved = self.move(StreamInput.BROKEN)
        if moved and cancelling:
            self.end = _cancelled(None)
        return moved and not cancelling

    def cancel(self) -> bool:
        """The client wants no more; whether the instance has to be told.

        What the client has is owed: until its count has been heard again, the instance goes on.
        """
        running, told = self.state in _HEARING, self.parting is _TOLD
        if self.owed and not told:
            self.parting = Parting.LEAVES
        if self.owed or told or not self.move(StreamInput.CANCEL):
            return False
        if self.wants.stream:
            self.text.drop()
        if not running:  # DRAINING: the instance is through, only its text was still waiting
            self.end = _cancelled(self.end.usage if self.end else None)
        return running

    def fail(self, error: SeedanceError) -> bool:
        """End it with an error of the gateway's own; whether the instance has to be told."""
        running = self.state in _HEARING
        if self.move(StreamInput.FINISH):
            self.text.drop()
            self.end = UpstreamFailed(error)
        return running

    def client_has(self, offset: int) -> None:
        """The client's word on resume: text below `offset` is there; −1: its end is, too."""
        if offset < 0:
            self.parting = _TOLD
            self.text.skip_to(sys.maxsize)
        elif offset > self.text.framed_bytes:
            self.text.skip_to(offset)

    # ------------------------------------------------------------ what is due

    @property
    def wanted(self) -> bool:
        """Whether more of it is wanted from an instance."""
        return self.state in _HEARING

    @property
    def owed(self) -> bool:
        """Whether the client has more of it than was counted: an instance is to say it again."""
        return self.state in _HEARING and self.text.behind

    @property
    def creditable(self) -> bool:
        """Whether the engine can use credit now."""
        return self.state in _CREDITABLE

    def credit_missing(self, share: int) -> int:
        """Tokens to add so that the engine may make its `share`; in halves, to save messages."""
        ahead = self.allowed_tokens - len(self.text.token_ids)
        waiting = self.text.waiting_tokens if self.wants.stream else 0
        has = ahead + waiting
        return 0 if has > share // 2 else share - has

    def next_frame(self, *, window_open: bool) -> SequencedFrame | None:
        """The next frame before the end; `accepted` does not wait for the window (§4.3)."""
        state = self.state
        if self.parting is _TOLD or state is _CANCELLING or state is _ENDED:
            return None
        if not self.told_accepted:
            return self._tell_accepted()
        if not window_open or not self.wants.stream:
            return None
        if self._hints.due is not None:
            at, self._hints.due = self._hints.due, None
            return Flush(self.id, at)
        token = self.text.take(self.id)
        if token is None:
            return None
        self._hints.due = self._hints.after(token)
        if token.logprobs is not None or self.wants.request.sampling.logprobs is not None:
            token.logprobs = _asked(self.wants, token.logprobs)
        return token

    def _tell_accepted(self) -> Accepted | None:
        if self.accepted is None or not self.stored:
            return None
        self.told_accepted = True
        return _accepted(self.id, self.accepted, self.traceparent)

    @property
    def more(self) -> bool:
        """Whether another frame may follow the one just made."""
        return bool(self.text.waiting) or self._hints.due is not None

    def settle(self, *, linked: bool) -> bool:
        """Whether what it costs has just become known; with `stream: false` only when it can be told."""
        ready = not self.text.waiting if self.wants.stream or self.parting is _TOLD else linked
        return ready and self.move(StreamInput.SETTLE)

    def end_frame(self, now: float) -> Done | ErrorFrame | None:
        """Its one end, when settled; None: the client has it already (`TOLD`)."""
        assert self.state is StreamState.SETTLED  # noqa: S101
        assert self.end is not None  # noqa: S101
        self.move(StreamInput.TOLD)
        if self.parting is _TOLD:
            return None
        if isinstance(self.end, UpstreamFailed):
            return error_frame(self.end.error, stream=self.id, usage=self.usage())
        text, logprobs = self._whole_text()
        timing = self.stopwatch.timing(self.end.timing, now)
        usage = self.usage()
        receipt = _receipt(self, usage)
        return Done(self.id, self.end.finish_reason, usage, timing, text, receipt, logprobs)

    def _whole_text(self) -> tuple[str | None, Logprobs]:
        if self.wants.stream:
            return None, None
        token = self.text.take_all()
        if token is None:
            return "", _asked(self.wants, None)
        return token.delta, _asked(self.wants, token.logprobs)

    @property
    def tellable(self) -> bool:
        """Whether its end may be told now: `accepted` comes first, unless nothing was achieved."""
        if self.parting is _TOLD or self.told_accepted or self.accepted is None:
            return True
        if not isinstance(self.end, UpstreamDone):
            return True
        return self.end.finish_reason == "cancelled"

    @property
    def reason(self) -> str:
        """Why it ended: the finish reason, or the error's code; `cancelled` if it was cut off."""
        match self.end:
            case UpstreamDone(finish_reason):
                return finish_reason
            case UpstreamFailed(error):
                return error.code.value
            case None:
                return "cancelled"

    def usage(self) -> Usage:
        """What is billed: the tokens whose text was framed (§4.9)."""
        known = self.end.usage if self.end is not None else None
        return Usage(
            (known.prompt_tokens if known else 0) or self.text.prompt_tokens,
            known.cached_tokens if known else 0,
            self.text.framed_tokens,
        )


def _accepted(name: str, taken: UpstreamAccepted, traceparent: str) -> Accepted:
    batch, quota = taken.adopted_batch_size, taken.token_quota
    return Accepted(name, taken.instance, batch, quota, traceparent or None)


def _asked(wants: Generate, logprobs: Logprobs) -> Logprobs:
    """Some where the client asked for them, if only none: of a text that came without."""
    return None if wants.request.sampling.logprobs is None else logprobs or ()


def _cancelled(usage: Usage | None) -> UpstreamDone:
    return UpstreamDone("cancelled", usage or Usage(), Timing())


def _receipt(stream: StreamMachine, usage: Usage) -> dict[str, Any] | None:
    if stream.sign is None or stream.text.digest is None:
        return None
    return stream.sign(stream.id, stream.text.digest, usage)


def _gap() -> SeedanceError:
    return SeedanceError(
        ErrorCode.RESUME_GAP, "`offsets` does not lie in this stream's text", field="offsets"
    )


def error_frame(
    error: SeedanceError, *, stream: str | None = None, usage: Usage | None = None
) -> ErrorFrame:
    """An error of the table as a frame; with `usage` it ends its stream."""
    return ErrorFrame(
        error.code,
        error.message,
        error.retryable,
        id=stream,
        retry_after_ms=(error.retry_after_ms or RETRY_AFTER_MS) if error.retryable else None,
        usage=usage,
        field=error.field,
    )
