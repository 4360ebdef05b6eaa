"""One stream's work at the instances: opened, found again after a break, and let go (the design, §3).

    ──open──► OPENING ──accepted──► HELD ──done, error──► OVER
                 ▲                   │ ▲
                 │                 broken
                 └──refused── ATTACHING ──accepted

The session's machine says what is wanted; where, and how often it is tried, is decided here.
"""

from __future__ import annotations

import asyncio
import random
from enum import Enum
from typing import TYPE_CHECKING

from gateway.metering.stream import StreamBooks
from gateway.session.bill import bill_of
from gateway.session.journal import Opening
from gateway.tenants.desk import Permit
from gateway.upstream.base import Attach, NoInstanceError, Open, StreamHandle, Where
from mesh.prefixes import prefix_marks
from mesh.telemetry.names import Attribute, Span
from mesh.telemetry.tracing import SpanHandle
from seedance.protocol.effects import Finished
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.events import (
    FromInstance,
    InstanceEvent,
    UpstreamAccepted,
    UpstreamBroken,
    UpstreamDone,
    UpstreamFailed,
    UpstreamPressure,
    UpstreamTokens,
)
from seedance.protocol.frames import Timing, Usage
from seedance.protocol.pressure import PressureLevel
from seedance.protocol.request import GenerateRequest, within_quota
from seedance.protocol.stream import StreamMachine, StreamState

if TYPE_CHECKING:
    from gateway.deps import GatewayDeps
    from gateway.session.identity import SessionIdentity
    from gateway.session.owner import SessionOwner

__all__ = ["RECOVERIES_MAX", "Generation"]

# A stream is looked for at once on its instance and on another one, then after waits that double, for
# about 13 s in all; then it ends with `unavailable`. Tokens that arrive make the count begin anew. One that
# no instance has taken yet is tried elsewhere only while the gateway's `RetryBudget` lasts.
RECOVERIES_MAX = 12
RECOVERIES_AT_ONCE = 2
RECOVERY_WAIT_S = 0.1
RECOVERY_WAIT_MAX_S = 2.0


def _wait_s(tries: int) -> float:
    waits = tries - RECOVERIES_AT_ONCE
    wait = min(RECOVERY_WAIT_S * 2.0 ** (waits - 1), RECOVERY_WAIT_MAX_S) if waits > 0 else 0.0
    # A thousand streams that lost one instance do not come to the next one in step.
    return wait * random.uniform(0.75, 1.25)  # noqa: S311 - no secret


class _Phase(Enum):
    OPENING = "opening"
    ATTACHING = "attaching"
    HELD = "held"
    OVER = "over"


class Generation:
    """Listens (with `listening`) for one stream of one session; `permit` counts it until it ends."""

    def __init__(
        self, owner: SessionOwner, stream: StreamMachine, opening: Opening, permit: Permit
    ) -> None:
        self.opening = opening
        self._permit = permit
        self._owner = owner
        self._stream = stream
        self._phase = _Phase.OPENING
        self.listening: _Ear | None = None
        self._handle: StreamHandle | None = None
        self._failed: frozenset[str] = frozenset()
        self._tries = 0
        # Text has come since it was opened or looked for: of the next tokens nothing is to be noted.
        self._usual = False
        self._credit = 0
        self._books = StreamBooks(opening.former, len(stream.text.token_ids))
        # When it was opened here, until its first text has come.
        self._opened_at: float | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._span = _begin_span(owner, stream, opening)
        stream.traceparent = self._span.traceparent

    @property
    def _deps(self) -> GatewayDeps:
        return self._owner.deps

    @property
    def _name(self) -> str:
        return f"{self._owner.identity.session}/{self._stream.id}"

    # ------------------------------------------------------------ what the session wants

    def open(self, credit: int) -> None:
        """Begin on the instance that the router's rule names; a refusal is heard like any other."""
        self._credit = credit
        self._opened_at = self._owner.deps.clock.monotonic()
        try:
            instance = self._choose()
        except NoInstanceError as error:
            self._hear(UpstreamFailed(error))
            return
        self._open_at(instance)

    def recover(self, credit: int) -> None:
        """The call broke: attach to the same instance first, it may be alive."""
        self._credit = credit
        self._leave()
        self._usual = False
        if self._tries == 0 and self.opening.instance:
            self._tries = 1
            self._attach_at(self.opening.instance)
        else:
            self._try_elsewhere()

    def grant(self, tokens: int) -> None:
        """More credit."""
        if self._phase in (_Phase.OPENING, _Phase.ATTACHING):
            # Who refuses it after all takes this along: whoever is asked next is given it again.
            self._credit += tokens
        if self._handle is not None:
            self._handle.add_credit(tokens)

    def cancel(self) -> None:
        """Stop the generation wherever it is; its end is heard, at once if nobody is asked."""
        self._stop_retrying()
        if self._handle is None and self.opening.instance and self._phase is not _Phase.OVER:
            # A former owner's instance may still hold it, with blocks that nobody needs now.
            self._attach_at(self.opening.instance)
        if self._handle is not None:
            self._handle.cancel()
        elif self._phase is not _Phase.OVER:
            self._hear(UpstreamBroken())

    def finish(self, finished: Finished) -> None:
        """The stream is settled: end its span, and write its bill if an instance ever took it."""
        opening = self.opening
        self._permit.close()
        opening.settled(self._stream.end, finished.usage)
        self._owner.deps.metrics.requests.labels("websocket", finished.reason).inc()
        if opening.model:  # what no instance took costs nothing
            bill = bill_of(self._owner, self._stream, opening, self._books, finished)
            self._owner.journal.bill(bill.event(reused=opening.reused))
        self._owner.journal.touch(self._stream.id)
        _end_span(self._span, opening, finished)

    def release(self) -> None:
        """Its end is in the store: the instance may forget it."""
        self._stop_retrying()
        self._permit.close()
        if self._handle is not None:
            self._handle.release()
        self._phase, self._handle, self.listening = _Phase.OVER, None, None

    def abandon(self) -> None:
        """This owner was fenced, or drains: not a word to the instance."""
        self._leave()
        self._permit.close()
        self._phase = _Phase.OVER
        if self._stream.state not in (StreamState.SETTLED, StreamState.ENDED):
            self._span.end()  # else `finish` has

    # ------------------------------------------------------------ what the instance says

    def tokens(self, what: UpstreamTokens) -> None:
        """Tokens of the call that is listened to; what nearly always comes costs the least."""
        if self._usual and self._stream.append(what):
            if not self._owner.pumping:
                self._owner.pump_soon()
            return
        known = len(self._stream.text.token_ids)
        # Perhaps of a stream that is not wanted any more: the bill's books know of it all the same.
        self._books.hear(what.token_index + len(what.token_ids))
        self._hear(what)
        if what.text and self._opened_at is not None:
            took = self._owner.deps.clock.monotonic() - self._opened_at
            self._owner.deps.metrics.ttft.observe(took)
            self._opened_at = None
        if self._tries and len(self._stream.text.token_ids) > known:
            self._tries, self._failed = 0, frozenset()
        self._usual = not self._tries and self._opened_at is None

    def heard(self, what: InstanceEvent) -> None:
        """One other event of the call that is listened to."""
        match what:
            case UpstreamAccepted():
                self._accepted(what)
            case UpstreamBroken():
                self._failed |= {self.opening.instance}
            case UpstreamFailed(error) if self._refused(error.code):
                self._try_elsewhere()
                return
            case UpstreamDone(usage=usage) | UpstreamFailed(usage=usage):
                self._phase = _Phase.OVER
                self._books.told = None if usage is None else usage.completion_tokens
        self._hear(what)

    def _refused(self, code: ErrorCode) -> bool:
        """Whether the refusal is of this instance or this way only, and another one is to be tried."""
        if not self._stream.wanted or code is ErrorCode.SESSION_EXPIRED:
            return False
        if self._phase is _Phase.OPENING and code is ErrorCode.UNAVAILABLE:
            self._failed |= {self.opening.instance}
            runs = bool(self.opening.model)
            return self._tries < RECOVERIES_MAX and (runs or self._owner.deps.retries.spend())
        # Whatever speaks against attaching, to open it anew with its tokens is always possible.
        return self._phase is _Phase.ATTACHING

    def _accepted(self, accepted: UpstreamAccepted) -> None:
        self._phase = _Phase.HELD
        self._owner.deps.retries.taken()
        opening = self.opening
        opening.instance = accepted.instance
        opening.model = accepted.model
        opening.prompt_tokens = accepted.prompt_tokens or opening.prompt_tokens
        opening.token_quota = opening.token_quota or accepted.token_quota
        self._owner.journal.touch(self._stream.id)

    def _hear(self, what: InstanceEvent) -> None:
        self._owner.hear(FromInstance(self._stream.id, what))

    # ------------------------------------------------------------ how

    def _try_elsewhere(self) -> None:
        self._leave()
        self._phase = _Phase.OPENING
        if self._tries >= RECOVERIES_MAX:
            gone = "no instance could go on with this stream"
            self._phase = _Phase.OVER
            self._hear(UpstreamFailed(SeedanceError(ErrorCode.UNAVAILABLE, gone)))
            return
        self._tries += 1
        self._retry = asyncio.get_running_loop().call_later(_wait_s(self._tries), self._reopen)

    def _reopen(self) -> None:
        self._retry = None
        try:
            instance = self._choose()
        except NoInstanceError:
            # Nobody else is there: the one that failed may be back by the next time.
            self._failed = frozenset()
            self._try_elsewhere()
            return
        self._open_at(instance)

    def _choose(self) -> str:
        where = _where(self._owner.identity, self.opening.wants.request, self._failed)
        span = self._owner.deps.tracing.start(Span.ROUTE, self._span.traceparent, hop="router")
        try:
            instance = self._owner.deps.upstream.choose(where)
        except NoInstanceError as error:
            span.end(error=error.code.value)
            raise
        span.set({Attribute.INSTANCE: instance})
        span.end()
        return instance

    def _open_at(self, instance: str) -> None:
        self._phase = _Phase.OPENING
        # What the stream has now was made by the instance that it leaves.
        has = len(self._stream.text.token_ids)
        self._books.leave(self.opening.model, self.opening.instance, has)
        self._moved_to(instance)
        spec = Open(
            self._name,
            self._owner.epoch,
            within_quota(self.opening.wants.request, self.opening.token_quota),
            self._owner.identity.tenant,
            forced_prefix=tuple(self._stream.text.token_ids),
            traceparent=self._span.traceparent,
            credit=self._credit,
        )
        self._handle = self._owner.deps.upstream.open(instance, spec, self._ear())

    def _attach_at(self, instance: str) -> None:
        self._phase = _Phase.ATTACHING
        spec = Attach(
            self._name,
            self._owner.epoch,
            len(self._stream.text.token_ids),
            traceparent=self._span.traceparent,
            credit=self._credit,
            tenant=self._owner.identity.tenant,
        )
        self._handle = self._owner.deps.upstream.attach(instance, spec, self._ear())

    def _moved_to(self, instance: str) -> None:
        self.opening.instance = instance
        self._owner.journal.touch(self._stream.id)

    def _ear(self) -> _Ear:
        self.listening = _Ear(self)
        return self.listening

    def _leave(self) -> None:
        self._stop_retrying()
        if self._handle is not None:
            self._handle.abandon()
        self._handle, self.listening = None, None

    def _stop_retrying(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None


def _where(identity: SessionIdentity, request: GenerateRequest, failed: frozenset[str]) -> Where:
    return Where(
        identity.user,
        request.model,
        identity.instance_class,
        exclude=failed,
        canary=identity.canary,
        prefix=prefix_marks(identity.tenant, request),
    )


def _begin_span(owner: SessionOwner, stream: StreamMachine, opening: Opening) -> SpanHandle:
    identity, request = owner.identity, opening.wants.request
    attributes: dict[Attribute, str | int | float] = {
        Attribute.OPERATION: "chat",
        Attribute.PROVIDER: "seedance",
        Attribute.REQUEST_MODEL: request.model,
        Attribute.TEMPERATURE: request.sampling.temperature,
        Attribute.TENANT: identity.tenant,
        Attribute.SESSION: identity.session,
        Attribute.STREAM: stream.id,
        Attribute.EPOCH: owner.epoch,
    }
    if request.max_tokens is not None:
        attributes[Attribute.MAX_TOKENS] = request.max_tokens
    return owner.deps.tracing.start(
        Span.GENERATE, opening.traceparent, kind="server", attributes=attributes
    )


def _end_span(span: SpanHandle, opening: Opening, finished: Finished) -> None:
    span.set(
        {
            Attribute.RESPONSE_MODEL: opening.model,
            Attribute.INSTANCE: opening.instance,
            Attribute.FINISH_REASONS: (finished.reason,),
            Attribute.INPUT_TOKENS: finished.usage.prompt_tokens or opening.prompt_tokens,
            Attribute.OUTPUT_TOKENS: finished.usage.completion_tokens,
        }
    )
    failed = finished.reason in {code.value for code in ErrorCode}
    span.end(error=finished.reason if failed else None)


class _Ear:
    """Listens to one call; what comes from a call that was left is not heard."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def _hear(self, what: InstanceEvent) -> None:
        if self._generation.listening is self:
            self._generation.heard(what)

    def on_accepted(self, accepted: UpstreamAccepted) -> None:
        """The instance has taken it."""
        self._hear(accepted)

    def on_tokens(self, tokens: UpstreamTokens) -> None:
        """Tokens arrived."""
        generation = self._generation
        if generation.listening is self:
            generation.tokens(tokens)

    def on_done(self, finish_reason: str, usage: Usage, timing: Timing) -> None:
        """It ended well."""
        self._hear(UpstreamDone(finish_reason, usage, timing))

    def on_error(self, error: SeedanceError, usage: Usage | None) -> None:
        """The instance refused or failed it."""
        self._hear(UpstreamFailed(error, usage))

    def on_pressure(self, level: PressureLevel, reason: str) -> None:
        """The instance asks for less, or no longer."""
        self._hear(UpstreamPressure(level, reason))

    def on_broken(self) -> None:
        """The call broke."""
        self._hear(UpstreamBroken())
