"""One HTTP generation whose tenant or key has a budget, between its reader and its instances.

To the reader it is the instances, to the instance's call it is the reader: credit goes through as far as money
reaches, and an instance is not heard of before its prompt is paid for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gateway.budgets.desk import Spending
from gateway.deps import GatewayDeps
from gateway.openai.account import Account
from gateway.upstream.base import (
    Open,
    PressureLevel,
    StreamHandle,
    StreamListener,
    UpstreamAccepted,
    UpstreamTokens,
)
from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import Timing, Usage

__all__ = ["PaidStream", "paid_stream"]

# Credit of a reader who wants the answer in one piece: more than any context holds.
UNLIMITED = 2**31


class PaidStream:
    """`StreamListener` of the call, `StreamHandle` and `Upstream.open` of the reader, `Spender` of the purse.

    `bearer`: who pays for the prompt that they have in common; None: itself.
    """

    def __init__(
        self, deps: GatewayDeps, spending: Spending, bearer: PaidStream | None = None
    ) -> None:
        self._upstream = deps.upstream
        self._spending = spending
        self._bearer = bearer
        self._on_funded: list[Callable[[], None]] = []
        self._listener: StreamListener | None = None
        self._handle: StreamHandle | None = None
        # What its instance has said before it is paid for: that it took it, and at most a token or two.
        self._unpaid: UpstreamAccepted | None = None
        self._early: list[UpstreamTokens] = []
        self._funded = False
        self._error: SeedanceError | None = None
        self._usage = Usage()
        spending.host = self

    def open(self, instance: str, spec: Open, listener: StreamListener) -> StreamHandle:
        """As `Upstream.open`, with as much credit as is paid for."""
        self._listener = listener
        if self._error is not None:  # cut while it had no instance: no other one is asked
            self._handle = None
            asyncio.get_running_loop().call_soon(listener.on_error, self._error, None)
            return self
        wanted = UNLIMITED if spec.credit is None else spec.credit
        credit = self._spending.call(len(spec.forced_prefix), wanted)
        self._handle = self._upstream.open(instance, replace(spec, credit=credit), self)
        return self

    def settle(self, framed_tokens: int) -> None:
        """It is over, and `framed_tokens` are billed; the prompt too, if no other choice bears it."""
        prompt = self._usage if self._bearer is None else Usage()
        billed = replace(prompt, completion_tokens=framed_tokens)
        self._spending.settle(billed if self._funded else None)

    # ------------------------------------------------------------ the reader's end of the call

    @property
    def instance(self) -> str:
        """The instance's id."""
        return self._handle.instance if self._handle else ""

    def add_credit(self, tokens: int) -> None:
        """The reader has room for more."""
        self._spending.want(tokens)

    def cancel(self) -> None:
        """End it."""
        if self._handle is not None:
            self._handle.cancel()

    def release(self) -> None:
        """The instance may forget it."""
        if self._handle is not None:
            self._handle.release()

    def abandon(self) -> None:
        """Stop listening."""
        if self._handle is not None:
            self._handle.abandon()

    # ------------------------------------------------------------ the purse's word

    def funded(self) -> None:
        """Its prompt is paid for."""
        self._funded = True
        unpaid, self._unpaid = self._unpaid, None
        if unpaid is not None and self._listener is not None:
            self._listener.on_accepted(unpaid)
        early, self._early = self._early, []
        for tokens in early:
            self.on_tokens(tokens)
        waiting, self._on_funded = self._on_funded, []
        for begin in waiting:
            begin()

    def once_funded(self, begin: Callable[[], None]) -> None:
        """Somebody whose prompt it bears has been taken: it may begin when that is paid for."""
        if self._funded:
            begin()
        else:
            self._on_funded.append(begin)

    def credit(self, tokens: int) -> None:
        """This much more is paid for."""
        if self._handle is not None:
            self._handle.add_credit(tokens)

    def cut(self, error: SeedanceError) -> None:
        """Nothing more is; the instance's last word has the exact usage."""
        self._error = error
        self.cancel()

    # ------------------------------------------------------------ the instance's word

    def on_accepted(self, accepted: UpstreamAccepted) -> None:
        """The instance has taken it."""
        self._usage = replace(self._usage, prompt_tokens=accepted.prompt_tokens)
        if self._funded and self._listener is not None:
            self._listener.on_accepted(accepted)
            return
        first, self._unpaid = self._unpaid is None, accepted
        if first and self._bearer is None:
            self._spending.begin(accepted.prompt_tokens, accepted.model)
        elif first and self._bearer is not None:
            self._bearer.once_funded(partial(self._spending.begin, 0, accepted.model))

    def on_tokens(self, tokens: UpstreamTokens) -> None:
        """Tokens arrived."""
        if self._unpaid is not None:
            self._early.append(tokens)
            return
        if self._listener is not None:
            self._listener.on_tokens(tokens)
        self._spending.received(tokens.token_index + len(tokens.token_ids))

    def on_done(self, finish_reason: str, usage: Usage, timing: Timing) -> None:
        """It ended."""
        self._counted(usage)
        if self._funded:
            self._spending.ended()
        if self._listener is None:
            return
        if self._error is not None and finish_reason == "cancelled":
            self._listener.on_error(self._error, usage if self._funded else None)
        else:
            self._listener.on_done(finish_reason, usage, timing)

    def on_error(self, error: SeedanceError, usage: Usage | None) -> None:
        """The instance refused or failed it."""
        if usage is not None:
            self._counted(usage)
        if self._listener is not None:
            self._listener.on_error(self._error or error, usage)

    def on_pressure(self, level: PressureLevel, reason: str) -> None:
        """The instance asks for less, or no longer."""
        if self._listener is not None:
            self._listener.on_pressure(level, reason)

    def on_broken(self) -> None:
        """The call broke."""
        if self._listener is not None and self._error is not None:
            self._listener.on_error(self._error, None)
        elif self._listener is not None:
            self._listener.on_broken()

    def _counted(self, usage: Usage) -> None:
        prompt_tokens = usage.prompt_tokens or self._usage.prompt_tokens
        self._usage = Usage(prompt_tokens, usage.cached_tokens)


def paid_stream(
    deps: GatewayDeps, account: Account, index: int, bearer: PaidStream | None
) -> PaidStream | None:
    """What stands between a generation and the instances; None: no budget counts it."""
    if deps.budgets is None:
        return None
    caller, began_ms = account.caller, account.started_ms
    spending = deps.budgets.open(
        account.generation(index), caller.tenant, caller.key, began_ms, resume_ttl_s=None
    )
    return None if spending is None else PaidStream(deps, spending, bearer)
