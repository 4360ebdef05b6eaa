"""A tenant's pace: its streams are given credit only as fast as its rates allow.

Nothing is cut and nothing is refused: a stream without credit waits at the engine (§4.3, §7), and its
text goes on when the bucket has flowed on.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.tenants.bucket import TokenBucket

__all__ = ["AHEAD_MAX", "GATHER_S", "LOOK_AGAIN_S", "CreditPacer"]

# What a stream may have been given and not have made yet: as much as a whole window.
AHEAD_MAX = 128
# Credit is given out in portions of this much time, so that a fast tenant costs few messages.
GATHER_S = 0.05
# A slice of the limit may be next to nothing for a moment, and at its pace the wait would be minutes.
LOOK_AGAIN_S = 1.0

S = TypeVar("S")


@dataclass(slots=True)
class _Wish:
    """`wanted`: asked for and not given. `ahead`: given and not made."""

    wanted: int = 0
    ahead: int = 0

    @property
    def takes(self) -> int:
        return min(self.wanted, AHEAD_MAX - self.ahead)


class CreditPacer(Generic[S]):
    """Gives credit in turns to the streams that want some, from a bucket of tokens.

    A bucket of bytes, where there is one, is charged with the text as it comes: while it is in debt
    nobody is given anything, so it is overdrawn by no more than what had been given.
    """

    def __init__(self) -> None:
        self.tokens: TokenBucket | None = None
        self.bytes: TokenBucket | None = None
        self._wishes: OrderedDict[S, _Wish] = OrderedDict()

    @property
    def limited(self) -> bool:
        """Whether there is a pace to keep."""
        return self.tokens is not None or self.bytes is not None

    @property
    def wanted(self) -> int:
        """Tokens that would be made at once if they might."""
        return sum(wish.takes for wish in self._wishes.values() if wish.wanted)

    def enter(self, stream: S, now: float) -> int:
        """A stream begins: it is given one token in any case, so that its prompt is worked on."""
        self._wishes[stream] = _Wish(ahead=1)
        if self.tokens is not None:
            self.tokens.spend(1, now)
        return 1

    def join(self, stream: S) -> None:
        """A stream that runs is to keep a pace from now on."""
        self._wishes.setdefault(stream, _Wish())

    def want(self, stream: S, tokens: int) -> None:
        """A stream asks for more."""
        if stream in self._wishes:
            self._wishes[stream].wanted += tokens

    def made(self, stream: S, tokens: int, text_bytes: int, now: float) -> None:
        """A stream has made tokens; `text_bytes` is how much text they were."""
        wish = self._wishes.get(stream)
        if wish is not None:
            wish.ahead = max(0, wish.ahead - tokens)
        if self.bytes is not None:
            self.bytes.spend(text_bytes, now)

    def leave(self, stream: S, now: float) -> None:
        """A stream has ended: what it was given and did not use is there for others."""
        wish = self._wishes.pop(stream, None)
        if wish is not None and self.tokens is not None:
            self.tokens.give_back(wish.ahead, now)

    def give(self, now: float) -> list[tuple[S, int]]:
        """Who is given how much now, in turns."""
        if self.bytes is not None and self.bytes.room(now) < 0:
            return []
        takers = [(s, w.takes) for s, w in self._wishes.items() if w.takes > 0]
        room = sum(takes for _, takes in takers) if self.tokens is None else self.tokens.room(now)
        given: list[tuple[S, int]] = []
        for place, (stream, takes) in enumerate(takers):
            # The rest of the room, shared among the rest; the first of them may have the odd one.
            portion = min(takes, -(-room // (len(takers) - place)))
            if portion <= 0:
                break
            room -= portion
            self._grant(stream, portion, now)
            given.append((stream, portion))
        return given

    def _grant(self, stream: S, tokens: int, now: float) -> None:
        wish = self._wishes[stream]
        wish.wanted -= tokens
        wish.ahead += tokens
        # Who was given something is last in the next turn.
        self._wishes.move_to_end(stream)
        if self.tokens is not None:
            self.tokens.spend(tokens, now)

    def wait_s(self, now: float) -> float | None:
        """Seconds until there may be something to give; None: nobody waits for time to pass."""
        wanted = self.wanted
        if not wanted:
            return None
        debt_ms = 0
        if self.bytes is not None:
            debt_ms = self.bytes.wait_ms(0, now)
        if self.tokens is not None:
            debt_ms = max(debt_ms, self.tokens.wait_ms(1, now))
        return min(max(debt_ms / 1000, GATHER_S), LOOK_AGAIN_S)
