"""What one stream cost, out of what the gateway knows at its end: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.metering.events import Attempt

__all__ = ["ATTEMPTS_MAX", "Counts", "FormerAttempt", "attempts_of", "discarded_of"]

# An attempt that ended before the stream did: model, instance, and the tokens that the stream had then.
FormerAttempt = tuple[str, str, int]

# As many attempts as an event may have; those before are counted with the first one told.
ATTEMPTS_MAX = 64
# Ends at which the instance has made nothing that it did not send.
_IN_FULL = frozenset({"stop", "length"})


@dataclass(frozen=True, slots=True)
class Counts:
    """One stream's tokens in the gateway's books and, where it told, in the instance's.

    `heard` and `framed` are the gateway's. `told`: the last instance's own count of what it computed,
    after the `begun_at` tokens that it was given.
    """

    reason: str
    heard: int
    framed: int
    told: int | None = None
    begun_at: int = 0

    @property
    def computed(self) -> int | None:
        """All that was computed for it, by the instances' count."""
        return None if self.told is None else self.begun_at + self.told


def discarded_of(counts: Counts) -> int:
    """Tokens in no frame: heard and not framed; and, of a stream that was given up, never heard.

    A stream that ended by itself was heard in full: there the instance's count is not believed, so
    that a difference shows (`metering.conservation`).
    """
    given_up = counts.reason not in _IN_FULL and counts.computed is not None
    made = max(counts.heard, counts.computed or 0) if given_up else counts.heard
    return made - counts.framed


def attempts_of(
    former: Sequence[FormerAttempt], last: tuple[str, str], framed: int
) -> tuple[Attempt, ...]:
    """Divide framed tokens among the instances that made them; empty when there was one attempt."""
    if not former:
        return ()
    parts: list[Attempt] = []
    at = 0
    for model, instance, ended_at in (*former[-(ATTEMPTS_MAX - 1) :], (*last, framed)):
        end = max(at, min(ended_at, framed))
        parts.append(Attempt(model, instance, end - at))
        at = end
    return tuple(parts)
