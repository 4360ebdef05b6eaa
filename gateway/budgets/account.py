"""The books of one budget in one period: what is spent for good, and what is held for streams that run.

    limit ─┬─ spent     by streams that have ended, at what they really cost
           ├─ held      by streams that run: no stream gets a token computed that is not held for
           └─ available

A hold belongs to a stream and not to a gateway: whoever takes the stream over after its gateway died goes on
with it, and settles it at what was really framed. Amounts in requests are totals and not differences, so a request
that is made twice, because its answer was lost, changes nothing the second time.

A store may lose its data, and a budget may be set in the middle of its period. Books that are new were *born* at a
moment: what ended before it is the ledger's to tell (`Seed`), what ends after it is settled here. Until the ledger has
told nothing new is granted.

This is the account in plain Python: the store of a mesh without Redis, and the model that `budget.lua` is tested against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

__all__ = [
    "DRY_MS",
    "SETTLED_KEPT_MS",
    "Account",
    "Answer",
    "Answers",
    "Hold",
    "Request",
    "Seed",
    "Settle",
    "Verdict",
]

# For so long after a request that could not be granted nobody gets more ahead than the next token.
DRY_MS = 1000
# How long it is remembered that a stream was settled, lest a second settling counts: longer than a session lives.
SETTLED_KEPT_MS = 600_000


class Verdict(IntEnum):
    """Of a hold: granted; not now, since others hold what they have not used; nothing is left; nobody knows yet."""

    GRANTED = 0
    WAIT = 1
    EMPTY = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold up to `want` in all for a stream, `least` if it is to be of any use, in steps of `step`.

    `used`: what its tokens until now cost. `returns`: a smaller `want` gives the rest back. `lasting`: when nobody
    is heard of for `ttl_ms`, `used` was framed and is spent; else (nobody could bill it) nothing was.
    """

    stream: str
    want: int
    least: int
    used: int
    step: int
    ttl_ms: int
    returns: bool = False
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class Settle:
    """The stream has ended and cost this much; `ended_ms`: when, Unix ms."""

    stream: str
    cost: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class Seed:
    """By the ledger, what ended before the books were born has cost so much. It may come to know of more."""

    cost: int


Request = Hold | Settle | Seed


@dataclass(frozen=True, slots=True)
class Answer:
    """What is held for the stream now. `dry`: others wait, so hold no more than is needed."""

    held: int
    verdict: Verdict
    dry: bool = False


@dataclass(frozen=True, slots=True)
class Answers:
    """One `Answer` for each `Hold`, in order. `crossed`: the soft budget has just been reached.

    `born_ms`: what ended before is the ledger's to tell (0: there is no ledger); `unseeded`: it has not yet.
    """

    holds: tuple[Answer, ...]
    crossed: bool = False
    born_ms: int = 0
    unseeded: bool = False


@dataclass(slots=True)
class _Held:
    held: int
    used: int
    until_ms: int
    lasting: bool


@dataclass(slots=True)
class Account:
    """One budget's books."""

    spent: int = 0
    holds: dict[str, _Held] = field(default_factory=dict)
    settled: dict[str, tuple[int, int]] = field(default_factory=dict)
    dry_until_ms: int = 0
    soft_told: bool = False
    born_ms: int | None = None
    seed: int | None = None

    @property
    def unseeded(self) -> bool:
        """Whether the ledger is to tell what was before, and has not."""
        return bool(self.born_ms) and self.seed is None

    @property
    def held(self) -> int:
        """Everything that is held."""
        return sum(hold.held for hold in self.holds.values())

    @property
    def used(self) -> int:
        """What of it is known to be used."""
        return sum(hold.used for hold in self.holds.values())

    def apply(
        self,
        requests: Sequence[Request],
        limit: int | None,
        soft: int | None,
        now_ms: int,
        born_ms: int = 0,
    ) -> Answers:
        """Do all of them in order, as one. `born_ms`: when the books are born, if they are new."""
        if self.born_ms is None:
            self.born_ms = born_ms
        self._expire(now_ms)
        answers = []
        for request in requests:
            match request:
                case Settle():
                    self._settle(request, now_ms)
                case Hold():
                    answers.append(self._hold(request, limit, now_ms))
                case Seed(cost):
                    known = self.seed or 0
                    self.seed = max(known, cost)
                    self.spent += self.seed - known
        crossed = soft is not None and not self.soft_told and self.spent + self.used >= soft
        self.soft_told = self.soft_told or crossed
        return Answers(tuple(answers), crossed, self.born_ms, self.unseeded)

    def _expire(self, now_ms: int) -> None:
        for name in [n for n, hold in self.holds.items() if hold.until_ms <= now_ms]:
            hold = self.holds.pop(name)
            if hold.lasting:
                self.spent += hold.used
        for name in [n for n, (_, until_ms) in self.settled.items() if until_ms <= now_ms]:
            del self.settled[name]

    def _settle(self, request: Settle, now_ms: int) -> None:
        self.holds.pop(request.stream, None)
        if request.ended_ms < (self.born_ms or 0):
            return
        before, _ = self.settled.get(request.stream, (0, 0))
        self.spent += request.cost - before
        self.settled[request.stream] = (request.cost, now_ms + SETTLED_KEPT_MS)

    def _hold(self, request: Hold, limit: int | None, now_ms: int) -> Answer:
        own = self.holds.get(request.stream)
        if own is None:
            # Settled by an owner who died before anybody heard of it: it is open again.
            before, _ = self.settled.pop(request.stream, (0, 0))
            self.spent -= before
            own = self.holds[request.stream] = _Held(before, before, 0, request.lasting)
        own.until_ms = now_ms + request.ttl_ms
        own.used = max(own.used, min(request.used, own.held))
        verdict = Verdict.GRANTED
        if request.want > own.held:
            verdict = self._grow(own, request, limit, now_ms)
        elif request.returns:
            own.held = max(request.want, own.used)
        return Answer(own.held, verdict, now_ms < self.dry_until_ms)

    def _grow(self, own: _Held, request: Hold, limit: int | None, now_ms: int) -> Verdict:
        if limit is None:
            own.held = request.want
            return Verdict.GRANTED
        if self.unseeded:
            own.held = own.used = max(own.held, request.used)
            return Verdict.UNKNOWN
        lowest = max(request.least, own.held)
        spare = limit - self.spent - self.held - (lowest - own.held)
        if spare < 0:
            self.dry_until_ms = now_ms + DRY_MS
            others_unused = (self.held - own.held) - (self.used - own.used)
            return Verdict.WAIT if others_unused else Verdict.EMPTY
        # Half of what is left among all, so that what is held ahead shrinks with it.
        fair = 0 if now_ms < self.dry_until_ms else spare // (2 * len(self.holds))
        ahead = max(0, min(request.want - lowest, fair))
        own.held = lowest + ahead - ahead % max(1, request.step)
        return Verdict.GRANTED
