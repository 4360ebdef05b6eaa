"""One generation on behalf of an HTTP request: one of its choices.

The listener keeps one merging slot, a `TextBuffer`: whatever an instance sends between two looks of
the reader becomes one piece, and credit bounds how much that can be. When the call to the instance
breaks, the reader re-opens the generation elsewhere with every token id it has as forced prefix,
so that the text goes on exactly; nothing is counted twice, because tokens are counted by index.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, replace

from gateway.deps import GatewayDeps
from gateway.metering.events import Attempt
from gateway.metering.stream import Counts, StreamBooks
from gateway.openai.account import Account
from gateway.openai.paid import PaidStream
from gateway.upstream.base import (
    NoInstanceError,
    Open,
    PressureLevel,
    StreamHandle,
    UpstreamAccepted,
    UpstreamTokens,
    Where,
)
from mesh.prefixes import prefix_marks
from mesh.telemetry.names import Span
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Timing, Token, Usage
from seedance.protocol.receipt import TextDigest
from seedance.protocol.request import GenerateRequest, within_quota
from seedance.protocol.text import TextBuffer, TextGapError

__all__ = ["CREDIT_TOKENS", "End", "Generation"]

# Most tokens that wait for a reader who is slow; below it the engine is never held back.
CREDIT_TOKENS = 128
# Before each attempt to go on elsewhere. At first another instance; later the lost one may be back.
REOPEN_DELAYS_S = (0.0, 0.25, 0.5, 1.0, 2.0)
# How long a cancelled generation's last word is waited for; it carries the exact usage.
CANCEL_WAIT_S = 2.0

# The same request may do well on another instance; within the gateway's `RetryBudget`, as none runs yet.
_TRY_ELSEWHERE = (ErrorCode.UNAVAILABLE,)
# And a continuation must not die of a full queue.
_TRY_ELSEWHERE_AGAIN = (ErrorCode.UNAVAILABLE, ErrorCode.OVERLOADED)


@dataclass(frozen=True, slots=True)
class End:
    """It ended well: `stop` or `length`, with what is billed (§4.9)."""

    finish_reason: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class _Lost:
    """The call broke, or the instance sent us elsewhere with `error`."""

    error: SeedanceError


class Generation:
    """Opens, reads, re-opens and closes one generation; the `StreamListener` of its stream.

    `index` is its place among those of the account. `paid`: its way to instances, where a budget counts it.
    `credit` None lets the engine run ahead of the reader (who wants the answer in one piece). `digest` hears all text.
    `open` first, then `next` until it returns an `End` or raises; `close` always.
    """

    def __init__(
        self,
        deps: GatewayDeps,
        request: GenerateRequest,
        account: Account,
        index: int = 0,
        *,
        credit: int | None,
        paid: PaidStream | None = None,
        digest: TextDigest | None = None,
    ) -> None:
        self._deps = deps
        self._request = _seeded(request)
        self._credit = credit
        self._granted = 0
        self._account = account
        self._index = index
        self._text = TextBuffer(digest=digest)
        self._handle: StreamHandle | None = None
        self._epoch = 0
        self._tries = 0
        self._accepted: UpstreamAccepted | None = None
        self._outcome: End | SeedanceError | _Lost | None = None
        self._wake = asyncio.Event()
        self._cancelling = False
        self._paid = paid

    # ------------------------------------------------------------ the reader

    async def open(self) -> UpstreamAccepted:
        """Start it on the instance of the router's choice; returns once it was taken.

        Raises `SeedanceError`: nobody serves that, or the instance refused it.
        """
        self._open_on(self._choose(frozenset()))
        while self._accepted is None:
            await self._news()
        return self._accepted

    async def next(self) -> Token | End:
        """The next text, as soon as there is some, or the end. Raises `SeedanceError`."""
        while True:
            token = self._take()
            if token is not None:
                return token
            if isinstance(self._outcome, End):
                return self._end(self._outcome)
            await self._news()

    async def whole(self) -> tuple[Token | None, End]:
        """All text at once, and the end. Raises `SeedanceError`."""
        while not isinstance(self._outcome, End):
            await self._news()
        return self._take(), self._end(self._outcome)

    async def close(self) -> None:
        """Cancel it unless it has ended, and write down what it cost."""
        try:
            if self._outcome is None and self._handle is not None:
                self._cancelling = True
                self._handle.cancel()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CANCEL_WAIT_S):
                        await self._settled()
        finally:
            if self._paid is not None:
                self._paid.settle(self._text.framed_tokens)
            self._account.close(*self._bill())

    @property
    def _books(self) -> StreamBooks:
        return self._account.books[self._index]

    def _bill(self) -> tuple[Counts, tuple[Attempt, ...]]:
        framed = self._text.framed_tokens
        self._books.hear(len(self._text.token_ids))
        counts = self._books.counts(_reason(self._outcome), framed)
        return counts, self._books.parts(framed)

    def _take(self) -> Token | None:
        token = self._text.take_all()
        if token is not None:
            self._account.text_sent()
            self._grant()
        return token

    def _grant(self) -> None:
        """Let the engine be `credit` tokens ahead of the reader, told in steps of a quarter.

        Tokens without text of their own (half a code point) wait for nobody and hold nothing back.
        """
        if self._credit is None or self._handle is None:
            return
        ahead = len(self._text.token_ids) - self._text.waiting_tokens + self._credit
        if ahead - self._granted >= max(1, self._credit // 4):
            self._handle.add_credit(ahead - self._granted)
            self._granted = ahead

    def _end(self, end: End) -> End:
        usage = replace(end.usage, completion_tokens=self._text.framed_tokens)
        return replace(end, usage=usage)

    async def _news(self) -> None:
        """Wait until something happened; go on elsewhere if that is what it takes."""
        if self._outcome is None:
            self._wake.clear()
            await self._wake.wait()
        if isinstance(self._outcome, _Lost):
            await self._reopen(self._outcome)
        elif isinstance(self._outcome, SeedanceError):
            raise self._outcome

    async def _settled(self) -> None:
        while self._outcome is None:
            self._wake.clear()
            await self._wake.wait()

    # ------------------------------------------------------------ instances

    def _choose(self, exclude: frozenset[str]) -> str:
        span = self._deps.tracing.start(Span.ROUTE, self._account.traceparent, hop="router")
        where = Where(
            user=self._account.caller.affinity,
            model=self._request.model,
            exclude=exclude,
            canary=self._account.caller.canary,
            prefix=prefix_marks(self._account.caller.tenant, self._request),
        )
        try:
            instance = self._deps.upstream.choose(where)
        except NoInstanceError as error:
            span.end(error=error.code.value)
            raise
        span.end()
        return instance

    def _open_on(self, instance: str) -> None:
        self._epoch += 1
        self._outcome = None
        self._books.leave(*self._books.held_by, len(self._text.token_ids))
        credit = None
        if self._credit is not None:
            credit = max(1, self._credit - self._text.waiting_tokens)
            self._granted = len(self._text.token_ids) + credit
        spec = Open(
            generation=self._account.generation(self._index),
            epoch=self._epoch,
            request=within_quota(
                self._request, self._accepted.token_quota if self._accepted else 0
            ),
            tenant=self._account.caller.tenant,
            forced_prefix=tuple(self._text.token_ids),
            traceparent=self._account.traceparent,
            credit=credit,
        )
        way = self._deps.upstream if self._paid is None else self._paid
        self._handle = way.open(instance, spec, self)

    async def _reopen(self, lost: _Lost) -> None:
        """Continue on another instance, or on the lost one once it is back.

        Raises the error that lost the call when the attempts are used up; text that came in
        between gives them anew.
        """
        exclude = frozenset({self._handle.instance}) if self._handle else frozenset[str]()
        while self._tries < len(REOPEN_DELAYS_S):
            await asyncio.sleep(REOPEN_DELAYS_S[self._tries])
            self._tries += 1
            try:
                instance = self._choose(exclude)
            except NoInstanceError:
                exclude = frozenset()
            else:
                self._open_on(instance)
                return
        self._outcome = lost.error
        raise lost.error

    # ------------------------------------------------------------ the instance's words

    def on_accepted(self, accepted: UpstreamAccepted) -> None:
        """The instance has taken it."""
        if self._accepted is None:
            self._accepted = accepted
        self._books.held_by = (accepted.model, accepted.instance)
        self._deps.retries.taken()
        self._account.accepted(self._index, accepted)
        self._wake.set()

    def on_tokens(self, tokens: UpstreamTokens) -> None:
        """Tokens arrived; what the reader has not taken yet is merged with them."""
        if self._outcome is not None:
            return
        try:
            self._text.receive(tokens)
        except TextGapError:
            if self._handle is not None:
                # Nobody will take what it makes, so it must not go on making it.
                self._handle.cancel()
                self._handle.abandon()
            self.on_broken()
            return
        self._grant()
        if self._text.waiting:
            self._tries = 0
            self._wake.set()

    def on_done(self, finish_reason: str, usage: Usage, _timing: Timing) -> None:
        """It ended well."""
        self._account.computed(self._index, usage)
        self._books.told = usage.completion_tokens
        if finish_reason == "cancelled" and not self._cancelling:
            # Ended over there without a word from us: this must not look like an end (CASES 67).
            self._finish(_gone("the generation was ended by its instance"))
        else:
            self._finish(End(finish_reason, self._account.prompt(self._index)))

    def on_error(self, error: SeedanceError, usage: Usage | None) -> None:
        """The instance refused or failed it."""
        if usage is not None:
            self._account.computed(self._index, usage)
            self._books.told = usage.completion_tokens
        if self._accepted is None:
            again = error.code in _TRY_ELSEWHERE and self._deps.retries.spend()
        else:
            again = error.code in _TRY_ELSEWHERE_AGAIN
        self._finish(_Lost(error) if again else error)

    def on_pressure(self, _level: PressureLevel, _reason: str) -> None:
        """OpenAI's API has no word for it."""

    def on_broken(self) -> None:
        """The call broke."""
        self._finish(_Lost(_gone("the instance is away and no other could go on")))

    def _finish(self, outcome: End | SeedanceError | _Lost) -> None:
        if self._outcome is None:
            self._outcome = outcome
        # HTTP does not resume: the instance may forget it at once.
        if self._handle is not None and not isinstance(outcome, _Lost):
            self._handle.release()
        self._wake.set()


def _seeded(request: GenerateRequest) -> GenerateRequest:
    """The request with a seed, so that a continuation says what the first instance would have."""
    if request.sampling.seed is not None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=secrets.randbits(63)))


def _gone(message: str) -> SeedanceError:
    return SeedanceError(ErrorCode.UNAVAILABLE, message, retry_after_ms=1000)


def _reason(outcome: End | SeedanceError | _Lost | None) -> str:
    match outcome:
        case End(finish_reason):
            return finish_reason
        case SeedanceError(code=code):
            return code.value
        case _:
            return "cancelled"
