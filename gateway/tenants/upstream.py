"""The instances as tenants share them: in fair turns, and at each tenant's pace.

`FairUpstream` is an `Upstream` around another one. Nobody on either side knows of it: a stream whose
turn has not come looks like one whose instance has not answered yet, one that is over its tenant's
rate like one whose client is slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial

from gateway.tenants.allowance import Allowance
from gateway.tenants.desk import Tenants
from gateway.tenants.fair_queue import FairQueue, QueueFullError
from gateway.upstream.base import (
    Attach,
    Open,
    PressureLevel,
    StreamHandle,
    StreamListener,
    Upstream,
    UpstreamAccepted,
    UpstreamTokens,
    Where,
)
from mesh.clock import Clock
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Timing, Usage

__all__ = ["FairUpstream", "TenantStream"]

# Who wants no bound on credit still has a pace to keep.
_UNBOUNDED = 2**31
_RETRY_AFTER_MS = 1000


class _Phase(Enum):
    """A stream waits for its turn, is at an instance, or is over."""

    WAITING = "waiting"
    OPEN = "open"
    OVER = "over"


class FairUpstream:
    """An `Upstream` in whose queue every tenant has its share; `places` is `FairQueue`'s."""

    def __init__(self, inner: Upstream, tenants: Tenants, clock: Clock, places: int) -> None:
        self.inner = inner
        self.tenants = tenants
        self.clock = clock
        self.queue: FairQueue[TenantStream] = FairQueue(places)
        self._look: asyncio.TimerHandle | None = None
        self._pacing: dict[Allowance, asyncio.TimerHandle] = {}

    def choose(self, where: Where) -> str:
        """The instance's id by the router's rule; see the base."""
        return self.inner.choose(where)

    def models(self) -> list[str]:
        """Every name that is served now; see the base."""
        return self.inner.models()

    def ready(self) -> bool:
        """At least one instance can take a stream; see the base."""
        return self.inner.ready()

    def pressure(self) -> PressureLevel:
        """The lowest level any usable instance asks for; see the base."""
        return self.inner.pressure()

    def open(self, instance: str, spec: Open, listener: StreamListener) -> StreamHandle:
        """Begin a stream in its tenant's turn; see the base."""
        stream = TenantStream(self, instance, spec, listener)
        if spec.forced_prefix:  # it ran elsewhere: it has had its turn
            stream.start()
            return stream
        tenant = self.tenants.tenant(spec.tenant)
        try:
            self.queue.enter(stream, tenant, self.clock.monotonic())
        except QueueFullError:
            full = "too many of the tenant's requests wait"
            error = SeedanceError(ErrorCode.OVERLOADED, full, retry_after_ms=_RETRY_AFTER_MS)
            stream.refuse(error)
        else:
            self.advance()
        return stream

    def attach(self, instance: str, spec: Attach, listener: StreamListener) -> StreamHandle:
        """Take over a stream that runs: it has had its turn; see the base."""
        stream = TenantStream(self, instance, spec, listener)
        stream.start()
        return stream

    # ------------------------------------------------------------ turns

    def advance(self) -> None:
        """Open those whose turn has come, and look again when time alone changes something."""
        now = self.clock.monotonic()
        for stream in self.queue.given_up(now):
            waited = "the request has waited too long for its turn"
            stream.refuse(
                SeedanceError(ErrorCode.OVERLOADED, waited, retry_after_ms=_RETRY_AFTER_MS)
            )
        for stream in self.queue.turns(now):
            stream.start()
        due_at = self.queue.due_at()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if due_at is not None:
            self._look = _later(due_at - now, self.advance)

    # ------------------------------------------------------------ pace

    def pace(self, allowance: Allowance) -> None:
        """Give the tenant's streams the credit that is there; what is not is given when it is."""
        if allowance in self._pacing:
            return
        now = self.clock.monotonic()
        for stream, tokens in allowance.pacer.give(now):
            stream.give(tokens)
        wait_s = allowance.pacer.wait_s(now)
        if wait_s is not None:
            self._pacing[allowance] = _later(wait_s, partial(self._pace_on, allowance))

    def _pace_on(self, allowance: Allowance) -> None:
        del self._pacing[allowance]
        self.pace(allowance)


def _later(seconds: float, what: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, what)


class TenantStream:
    """One stream: the handle that its opener holds, and the listener that its instance knows."""

    def __init__(
        self, upstream: FairUpstream, instance: str, spec: Open | Attach, listener: StreamListener
    ) -> None:
        self._upstream = upstream
        self._instance = instance
        self._spec = spec
        self._listener = listener
        self._allowance = upstream.tenants.of(spec.tenant)
        self._phase = _Phase.WAITING
        self._handle: StreamHandle | None = None
        self._credit = spec.credit
        self._telling: asyncio.Handle | None = None

    # ------------------------------------------------------------ its turn

    def start(self) -> None:
        """Its turn has come: go to the instance."""
        self._phase = _Phase.OPEN
        credit, pacer = self._credit, self._allowance.pacer
        if pacer.limited:
            wanted = _UNBOUNDED if credit is None else credit
            # Never more than was asked for: a stream whose budget has not been asked yet begins with none.
            credit = min(wanted, pacer.enter(self, self._upstream.clock.monotonic()))
            pacer.want(self, wanted - credit)
        inner = self._upstream.inner
        if isinstance(self._spec, Attach):
            attach = replace(self._spec, credit=credit)
            self._handle = inner.attach(self._instance, attach, self)
        else:
            weight = self._allowance.tenant.weight
            self._handle = inner.open(
                self._instance, replace(self._spec, credit=credit, weight=weight), self
            )
        if pacer.limited:
            self._upstream.pace(self._allowance)

    def refuse(self, error: SeedanceError) -> None:
        """Its turn will not come; the listener hears so at the next turn of the loop."""
        self._phase = _Phase.OVER
        self._tell(partial(self._listener.on_error, error, None))

    def _tell(self, what: Callable[[], None]) -> None:
        self._telling = asyncio.get_running_loop().call_soon(what)

    def give(self, tokens: int) -> None:
        """Credit that its tenant's pace allows."""
        if self._handle is not None:
            self._handle.add_credit(tokens)

    def _over(self, tokens: int | None) -> None:
        """It is over here, and has cost so much; None: its instance has not said."""
        if self._phase is _Phase.OVER:
            return
        self._phase = _Phase.OVER
        self._allowance.pacer.leave(self, self._upstream.clock.monotonic())
        self._upstream.queue.leave(self, self._spec.tenant, tokens)
        self._upstream.advance()

    # ------------------------------------------------------------ what its opener wants

    @property
    def instance(self) -> str:
        """The instance's id."""
        return self._instance

    def add_credit(self, tokens: int) -> None:
        """Let the engine send this many more, as soon as the tenant's pace allows."""
        if self._handle is None:
            if self._credit is not None:
                self._credit += tokens
        elif self._allowance.pacer.limited:
            # It may have begun when its tenant had no limit: what it was given then it has.
            self._allowance.pacer.join(self)
            self.on_tokens = self._paced  # type: ignore[method-assign]
            self._allowance.pacer.want(self, tokens)
            self._upstream.pace(self._allowance)
        else:
            self._handle.add_credit(tokens)

    def cancel(self) -> None:
        """End it; of one that waits the end is heard at the next turn of the loop."""
        if self._handle is not None:
            self._handle.cancel()
        elif self._phase is _Phase.WAITING:
            self._over(0)
            self._tell(partial(self._listener.on_done, "cancelled", Usage(), Timing()))

    def release(self) -> None:
        """Its end is in the store: the instance may forget it. Nothing is heard any more."""
        self._let_go()
        if self._handle is not None:
            self._handle.release()

    def abandon(self) -> None:
        """Stop listening: nothing that a newer owner has is touched."""
        self._let_go()
        if self._handle is not None:
            self._handle.abandon()

    def _let_go(self) -> None:
        self._over(None)
        if self._telling is not None:
            self._telling.cancel()

    # ------------------------------------------------------------ what its instance says

    def on_accepted(self, accepted: UpstreamAccepted) -> None:
        """The instance has taken it."""
        self._listener.on_accepted(accepted)

    def on_tokens(self, tokens: UpstreamTokens) -> None:
        """The first tokens: it has begun. Those of a tenant without a pace pass by from here on."""
        if self._upstream.queue.begun(self):
            self._upstream.advance()
        limited = self._allowance.pacer.limited
        # An instance attribute in the method's place: where nothing is counted, nothing is called.
        self.on_tokens = self._paced if limited else self._listener.on_tokens  # type: ignore[method-assign]
        self.on_tokens(tokens)

    def _paced(self, tokens: UpstreamTokens) -> None:
        count, text_bytes = len(tokens.token_ids), len(tokens.text)
        allowance, now = self._allowance, self._upstream.clock.monotonic()
        allowance.made(count, text_bytes)
        allowance.pacer.made(self, count, text_bytes, now)
        self._upstream.pace(allowance)
        self._listener.on_tokens(tokens)

    def on_done(self, finish_reason: str, usage: Usage, timing: Timing) -> None:
        """It ended well."""
        self._over(_cost(usage))
        self._listener.on_done(finish_reason, usage, timing)

    def on_error(self, error: SeedanceError, usage: Usage | None) -> None:
        """The instance refused or failed it."""
        self._over(0 if usage is None else _cost(usage))
        self._listener.on_error(error, usage)

    def on_pressure(self, level: PressureLevel, reason: str) -> None:
        """The instance asks its callers for less, or no longer."""
        self._listener.on_pressure(level, reason)

    def on_broken(self) -> None:
        """The call broke."""
        self._over(None)
        self._listener.on_broken()


def _cost(usage: Usage) -> int:
    """What the engine computed for it, as the engine's own shares count."""
    return usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
