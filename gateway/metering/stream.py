"""What one stream cost, out of what the gateway knows at its end: pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.metering.events import Attempt

__all__ = ["ATTEMPTS_MAX", "Counts", "FormerAttempt", "StreamBooks", "discarded_of"]

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


class StreamBooks:
    """What a gateway notes of one stream while it runs, for its bill.

    `former`: attempts before the one that runs, in a list that may be its owner's (who stores it).
    `held_by`: the model and the instance of the one that runs, for an owner who stores nothing.
    """

    def __init__(self, former: list[FormerAttempt] | None = None, heard: int = 0) -> None:
        self.former = [] if former is None else former
        self.told: int | None = None
        self.held_by = ("", "")
        self._heard = heard

    def hear(self, tokens: int) -> None:
        """The stream had so many tokens by an instance's word, wanted or not."""
        self._heard = max(self._heard, tokens)

    def leave(self, model: str, instance: str, tokens: int) -> None:
        """The stream goes on elsewhere; of its `tokens` those since the last attempt were made there."""
        self.told = None  # a count of that instance's alone, where it gave one
        if model and tokens > self._begun_at:
            self.former.append((model, instance, tokens))

    @property
    def _begun_at(self) -> int:
        return self.former[-1][2] if self.former else 0

    def counts(self, reason: str, framed: int) -> Counts:
        """The figures at the stream's end."""
        return Counts(reason, max(self._heard, framed), framed, self.told, self._begun_at)

    def attempts(self, model: str, instance: str, framed: int) -> tuple[Attempt, ...]:
        """Divide framed tokens among the instances that made them; empty when there was one attempt.

        `model` and `instance` are those of the last attempt.
        """
        if not self.former:
            return ()
        parts: list[Attempt] = []
        at = 0
        last = (model, instance, framed)
        for its_model, its_instance, ended_at in (*self.former[-(ATTEMPTS_MAX - 1) :], last):
            end = max(at, min(ended_at, framed))
            parts.append(Attempt(its_model, its_instance, end - at))
            at = end
        return tuple(parts)

    def parts(self, framed: int) -> tuple[Attempt, ...]:
        """As `attempts`, by `held_by`, also when there was one alone; what nobody took has no part."""
        if not self.held_by[0]:
            return ()
        return self.attempts(*self.held_by, framed) or (Attempt(*self.held_by, framed),)
