"""A generation whose tenant or key has a budget: the engine gets no credit that is not paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.budgets.desk import Spending
from gateway.session.generation import Generation
from gateway.session.journal import Opening
from gateway.tenants.desk import Permit
from seedance.protocol.effects import Finished
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.events import (
    InstanceEvent,
    UpstreamAccepted,
    UpstreamBroken,
    UpstreamDone,
    UpstreamFailed,
    UpstreamTokens,
)
from seedance.protocol.frames import Usage
from seedance.protocol.stream import StreamMachine

if TYPE_CHECKING:
    from gateway.session.owner import SessionOwner

__all__ = ["PaidGeneration", "generation_of"]


class PaidGeneration(Generation):
    """Opens with no credit; when its prompt and a token are paid for, the session hears of it."""

    def __init__(
        self,
        owner: SessionOwner,
        stream: StreamMachine,
        opening: Opening,
        permit: Permit,
        spending: Spending,
    ) -> None:
        super().__init__(owner, stream, opening, permit)
        self._spending = spending
        # What its instance has said before it is paid for: that it took it, and at most a token or two.
        self._unpaid: UpstreamAccepted | None = None
        self._early: list[UpstreamTokens] = []
        self._error: SeedanceError | None = None
        spending.host = self
        if opening.model:  # a former owner has paid for its prompt
            spending.begin(opening.prompt_tokens, opening.model)

    # ------------------------------------------------------------ what the session wants

    def open(self, credit: int) -> None:
        """As the base, with what is paid for."""
        super().open(self._spending.call(0, credit))

    def recover(self, credit: int) -> None:
        """As the base, with what is paid for."""
        super().recover(self._spending.call(len(self._stream.text.token_ids), credit))

    def grant(self, tokens: int) -> None:
        """More credit, as far as money reaches."""
        self._spending.want(tokens)

    def finish(self, finished: Finished) -> None:
        """As the base, and what it cost is taken from the budgets."""
        super().finish(finished)
        usage, opening = finished.usage, self.opening
        prompt_tokens = usage.prompt_tokens or opening.prompt_tokens
        billed = Usage(prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        self._spending.settle(billed if opening.model else None)

    def abandon(self) -> None:
        """As the base: the new owner goes on with what is held."""
        super().abandon()
        self._spending.leave()

    # ------------------------------------------------------------ what the instance says

    def tokens(self, what: UpstreamTokens) -> None:
        """As the base."""
        if self._unpaid is not None:
            self._early.append(what)
            return
        super().tokens(what)
        self._spending.received(len(self._stream.text.token_ids))

    def heard(self, what: InstanceEvent) -> None:
        """As the base, but nobody hears of an instance before it is paid for."""
        match what:
            case UpstreamAccepted() if not self.opening.model:
                first, self._unpaid = self._unpaid is None, what
                if first:
                    self._spending.begin(what.prompt_tokens, what.model)
                return
            case UpstreamDone(finish_reason="cancelled", usage=usage) if self._error:
                # What was not paid for was not computed, and is not billed.
                what = UpstreamFailed(self._error, usage if self.opening.model else Usage())
            case UpstreamBroken() if self._error:
                what = UpstreamFailed(self._error)
        super().heard(what)

    def _refused(self, code: ErrorCode) -> bool:
        return self._error is None and super()._refused(code)

    # ------------------------------------------------------------ what the budgets say

    def funded(self) -> None:
        """Its prompt is paid for."""
        unpaid, self._unpaid = self._unpaid, None
        if unpaid is not None:
            super().heard(unpaid)
        early, self._early = self._early, []
        for tokens in early:
            self.tokens(tokens)

    def credit(self, tokens: int) -> None:
        """This much more is paid for."""
        super().grant(tokens)

    def cut(self, error: SeedanceError) -> None:
        """Nothing more is: what it has is framed, and then it ends."""
        self._error = error
        if self._handle is not None:
            self._handle.cancel()  # its last word has the exact usage
        else:
            self._stop_retrying()
            self._hear(UpstreamFailed(error))


def generation_of(
    owner: SessionOwner, stream: StreamMachine, opening: Opening, permit: Permit
) -> Generation:
    """The host of a stream: with a purse where a budget counts it, and a signer where it wants a receipt."""
    receipts = owner.deps.receipts
    if stream.wants.receipt and receipts is not None:
        stream.sign = receipts.of_session(owner.identity.session)
    desk, identity = owner.deps.budgets, owner.identity
    if desk is None:
        return Generation(owner, stream, opening, permit)
    # A session may have had the id before: when the stream began tells them apart.
    name = f"{identity.session}/{stream.id}/{opening.started_ms}"
    resume_ttl_s = owner.deps.settings.resume_ttl_s
    spending = desk.open(
        name,
        identity.tenant,
        identity.key,
        opening.started_ms,
        resume_ttl_s=resume_ttl_s,
        tariffs=opening.tariffs,
    )
    if spending is None:
        return Generation(owner, stream, opening, permit)
    return PaidGeneration(owner, stream, opening, permit, spending)
