"""Listens between an instance and a stream's owner, for what both say about the instance."""

from __future__ import annotations

from collections.abc import Callable

from gateway.upstream.base import PressureLevel, StreamListener, UpstreamAccepted, UpstreamTokens
from gateway.upstream.member import Member
from mesh.canary import Tally
from mesh.clock import Clock
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Timing, Usage

__all__ = ["Observed"]

# What an instance says when it is its own fault.
_FAULTS = (ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE)


class Observed:
    """`StreamListener` that counts the first token and the end, and passes everything on.

    `first_token` false: it is a continuation, whose first token says nothing. After the first tokens
    `on_tokens` is what its owner listens with by then, so that a token costs nothing here.
    """

    def __init__(
        self,
        listener: StreamListener,
        member: Member,
        tally: Tally,
        clock: Clock,
        *,
        first_token: bool,
    ) -> None:
        self._listener = listener
        self._member = member
        self._tally = tally
        self._clock = clock
        self._opened = clock.monotonic()
        self.on_accepted: Callable[[UpstreamAccepted], None] = listener.on_accepted
        self.on_pressure: Callable[[PressureLevel, str], None] = listener.on_pressure
        self.on_tokens: Callable[[UpstreamTokens], None] = (
            self._first_tokens if first_token else self._continued
        )

    def _first_tokens(self, tokens: UpstreamTokens) -> None:
        self._tally.first_token(self._clock.monotonic() - self._opened)
        self._continued(tokens)

    def _continued(self, tokens: UpstreamTokens) -> None:
        self._listener.on_tokens(tokens)
        # Afterwards: with the first tokens its owner, too, may give way to whom they are meant for.
        self.on_tokens = self._listener.on_tokens

    def on_done(self, finish_reason: str, usage: Usage, timing: Timing) -> None:
        """It ended well."""
        self._ended(failed=False)
        self._member.ejection.ended(self._clock.monotonic(), failed=False)
        self._listener.on_done(finish_reason, usage, timing)

    def on_error(self, error: SeedanceError, usage: Usage | None) -> None:
        """It was refused or failed; only a fault of the instance speaks against it."""
        failed = error.code in _FAULTS and not self._member.instance.draining
        self._ended(failed=failed)
        if failed:
            self._member.ejection.ended(self._clock.monotonic(), failed=True)
        self._listener.on_error(error, usage)

    def on_broken(self) -> None:
        """The call broke: that is the breaker's affair, and counts against a canary.

        Streams that leave an instance which drains hear the same, and it is no fault.
        """
        self._ended(failed=not self._member.instance.draining)
        self._listener.on_broken()

    def _ended(self, *, failed: bool) -> None:
        self._tally.ended += 1
        self._tally.failed += failed
