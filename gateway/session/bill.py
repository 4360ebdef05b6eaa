"""The bill of a stream that is settled (§4.9), in all books that this gateway keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.metering.events import StreamFinished
from gateway.metering.stream import StreamBooks, discarded_of
from gateway.session.journal import Opening
from seedance.protocol.effects import Finished
from seedance.protocol.stream import StreamMachine

if TYPE_CHECKING:
    from gateway.session.owner import SessionOwner

__all__ = ["bill_of"]


def bill_of(
    owner: SessionOwner,
    stream: StreamMachine,
    opening: Opening,
    books: StreamBooks,
    finished: Finished,
) -> StreamFinished:
    """What the stream cost: its framed tokens, whoever made them, acknowledged or not."""
    framed = finished.usage.completion_tokens
    books.hear(len(stream.text.token_ids))
    counts = books.counts(finished.reason, framed)
    # An answer in one piece is in `done` and acknowledged with it: there is no part of it to tell.
    retained = owner.machine.delivery.log.tokens_of(stream.id) if stream.wants.stream else None
    return StreamFinished(
        tenant=owner.identity.tenant,
        session=owner.identity.session,
        stream=stream.id,
        model=opening.model,
        instance=opening.instance,
        finish_reason=finished.reason,
        prompt_tokens=finished.usage.prompt_tokens or opening.prompt_tokens,
        cached_tokens=finished.usage.cached_tokens,
        completion_tokens=framed,
        started_ms=opening.started_ms,
        # Lest a wall clock that was set back makes it end before it began.
        ended_ms=max(opening.started_ms, owner.deps.clock.wall_ms()),
        traceparent=stream.traceparent,
        computed_tokens=counts.computed,
        discarded_tokens=discarded_of(counts),
        acknowledged_tokens=None if retained is None else max(0, framed - retained),
        retained_tokens=retained,
        attempts=books.attempts(opening.model, opening.instance, framed),
        gateway=owner.deps.usage.gateway,
        key=owner.identity.key,
    )
