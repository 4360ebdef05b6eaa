"""One stream's money: how many tokens the engine may make, by every budget that the stream counts in.

    UNFUNDED ──prompt and one token held──► FUNDED ◄──granted── WAITING
        │                                     │  └──nothing to be had──►│
        └──────────────────── cut, or the stream's end ─────────────────┴──► OVER

The session's machine says how much credit the window has room for (`want`); what the engine gets of it is what the
budgets hold for the stream. No store is asked on a token's way: holds are made ahead, and a stream that has used up
its own rests at the engine until the answer is there.

`step(event, now)` returns what the host has to do. Amounts are those of `gateway.budgets.model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from gateway.budgets.account import Answer, Hold, Settle, Verdict
from gateway.budgets.model import Tariff
from seedance.protocol.errors import ErrorCode
from seedance.protocol.frames import Usage

__all__ = [
    "AHEAD_TOKENS",
    "RENEW_S",
    "UNFUNDED_WAIT_MAX_S",
    "WAIT_MAX_S",
    "Answered",
    "Ask",
    "Begin",
    "Credit",
    "Cut",
    "Ended",
    "Funded",
    "Pocket",
    "Purse",
    "PurseState",
    "Received",
    "Tick",
    "Want",
]

# Most tokens that are held for a stream beyond those it has.
AHEAD_TOKENS = 128
# How often a hold shows that its stream lives, and how long it stays without. A session's stream is found
# by another gateway within `resume_ttl` and half a minute, an HTTP one by nobody.
RENEW_S = 5.0
TTL_S = 20.0
TTL_BEYOND_RESUME_S = 180.0
# While others hold what they have not used, a stream waits for it, no longer than this; one that has not
# begun has a place at its instance that others may want.
WAIT_MAX_S = 30.0
UNFUNDED_WAIT_MAX_S = 5.0
ASK_AGAIN_S = 0.02
ASK_AGAIN_MAX_S = 0.5


class PurseState(Enum):
    """Whether the stream may run; `ENDED`: it makes no more tokens, and will be settled."""

    UNFUNDED = "unfunded"
    FUNDED = "funded"
    WAITING = "waiting"
    ENDED = "ended"
    OVER = "over"


class _Refusal(Enum):
    """Why an account gave no more."""

    EMPTY = "empty"
    WAIT = "wait"
    AWAY = "away"


_REFUSALS = {
    Verdict.EMPTY: _Refusal.EMPTY,
    Verdict.WAIT: _Refusal.WAIT,
    Verdict.UNKNOWN: _Refusal.AWAY,
}


@dataclass(frozen=True, slots=True)
class Begin:
    """What it has to pay for is known: the prompt, and in which accounts at which tariffs."""

    prompt_tokens: int
    tariffs: Sequence[tuple[str, Tariff]]


@dataclass(frozen=True, slots=True)
class Want:
    """The window has room for so many more tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Received:
    """The stream has so many tokens in all."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Answered:
    """An account's answer; None: the store could not be asked."""

    account: str
    answer: Answer | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """It has all its tokens: what is held ahead is for others, also if it is settled only with others."""


Event = Begin | Want | Received | Answered | Ended | Tick


@dataclass(frozen=True, slots=True)
class Ask:
    """Put this to the account."""

    account: str
    hold: Hold


@dataclass(frozen=True, slots=True)
class Funded:
    """Its prompt is paid for: what its instance says may be believed."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Let the engine make this many more tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Cut:
    """End it: `quota_exceeded`, or `unavailable` when the store has been away for too long."""

    code: ErrorCode


Effect = Ask | Funded | Credit | Cut


@dataclass(slots=True)
class Pocket:
    """What one account holds for the stream."""

    account: str
    tariff: Tariff
    held: int = 0
    asking: bool = False
    asked_at: float = float("-inf")
    # Asks when no more tokens than this are left; in an account that runs dry, when none are.
    low: int = AHEAD_TOKENS // 2
    refused: _Refusal | None = None
    dry: bool = False

    def tokens(self, prompt_tokens: int) -> float:
        """How many output tokens are paid for; negative: not even the prompt."""
        left = self.held - self.tariff.held_for(prompt_tokens)
        if left < 0 or not self.tariff.output:
            return -1 if left < 0 else float("inf")
        return left // self.tariff.output


@dataclass(slots=True)
class Purse:
    """`name` is the stream's in every account. `lasting`: another gateway may find it (`resume_ttl_s`)."""

    name: str
    lasting: bool = False
    resume_ttl_s: float = 0.0
    state: PurseState = PurseState.UNFUNDED
    pockets: list[Pocket] = field(default_factory=list)
    prompt_tokens: int = 0
    received: int = 0
    wanted: int = 0
    given: int = 0
    waiting_since: float | None = None
    ask_again_s: float = ASK_AGAIN_S
    ask_at: float = float("inf")
    out: list[Effect] = field(default_factory=list)

    # ------------------------------------------------------------ calls to instances

    def call(self, tokens: int, credit: int) -> int:
        """A call begins after `tokens` tokens, the window has room for `credit`: what it may begin with."""
        self.received = max(self.received, tokens)
        self.wanted = tokens + credit
        self.given = max(tokens, int(min(self.wanted, self.allowed)))
        return self.given - tokens

    @property
    def allowed(self) -> float:
        """Tokens in all that are paid for."""
        if self.state in (PurseState.UNFUNDED, PurseState.OVER):
            return 0
        return min(pocket.tokens(self.prompt_tokens) for pocket in self.pockets)

    # ------------------------------------------------------------ events

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take an event, return what is to be done."""
        # Also when it is over: prices that come late are needed to settle it.
        if isinstance(event, Begin):
            self.prompt_tokens = event.prompt_tokens
            self.pockets = [Pocket(account, tariff) for account, tariff in event.tariffs]
            self.waiting_since = now
        if self.state is PurseState.OVER:
            return []
        match event:
            case Want(tokens):
                self.wanted += tokens
            case Received(tokens):
                self.received = max(self.received, tokens)
            case Answered():
                self._answered(event, now)
            case Ended():
                self.state, self.given = PurseState.ENDED, self.received
                for pocket in self.pockets:
                    pocket.asked_at = float("-inf")
            case Begin() | Tick():
                pass
        self._look(now)
        out, self.out = self.out, []
        return out

    def renew(self, account: str) -> None:
        """The account's books are new: they are to hear of it with the next event."""
        for pocket in self.pockets:
            if pocket.account == account:
                pocket.asked_at = float("-inf")

    def settle(self, usage: Usage | None, ended_ms: int) -> list[tuple[str, Settle]]:
        """It ended at a moment (Unix ms): what it cost in each account (None: nothing)."""
        self.state = PurseState.OVER
        settles = []
        for pocket in self.pockets:
            cost = 0
            if usage is not None:
                cost = pocket.tariff.cost(usage)
            settles.append((pocket.account, Settle(self.name, cost, ended_ms)))
        return settles

    def _answered(self, event: Answered, now: float) -> None:
        pocket = next(p for p in self.pockets if p.account == event.account)
        pocket.asking = False
        answer = event.answer
        pocket.refused = _REFUSALS.get(answer.verdict) if answer else _Refusal.AWAY
        if pocket.refused is None:
            self.ask_again_s = ASK_AGAIN_S
        else:
            self.ask_at = now + self.ask_again_s
            self.ask_again_s = min(2 * self.ask_again_s, ASK_AGAIN_MAX_S)
        if answer is None:
            return
        grown = answer.held - pocket.held
        pocket.held, pocket.dry = answer.held, answer.dry
        ahead = grown // (2 * max(1, pocket.tariff.output))
        pocket.low = min(AHEAD_TOKENS // 2, max(0, ahead))

    # ------------------------------------------------------------ what follows

    def _look(self, now: float) -> None:
        if not self.pockets:  # its prices are not known yet
            self.waiting_since = now if self.waiting_since is None else self.waiting_since
            if now >= self.waiting_since + UNFUNDED_WAIT_MAX_S:
                self._cut(ErrorCode.UNAVAILABLE)
            return
        if self.state is PurseState.ENDED:
            self._give_back(now)
            return
        paid = min(pocket.tokens(self.prompt_tokens) for pocket in self.pockets)
        if paid > self.received:
            self._run(paid)
        else:
            self._rest(now)
        if self.state is not PurseState.OVER:
            for pocket in self.pockets:
                self._ask_if_due(pocket, now)

    def _give_back(self, now: float) -> None:
        for pocket in self.pockets:
            if not pocket.asking and now >= pocket.asked_at + RENEW_S:
                self._ask(pocket, now, None)

    def _run(self, paid: float) -> None:
        if self.state is PurseState.UNFUNDED:
            self.out.append(Funded())
        self.state = PurseState.FUNDED
        self.waiting_since = None
        more = int(min(self.wanted, paid)) - self.given
        if more > 0:
            self.given += more
            self.out.append(Credit(more))

    def _rest(self, now: float) -> None:
        """Nothing that is paid for is left: wait for more, or end."""
        if self.state is PurseState.FUNDED:
            self.state = PurseState.WAITING
        if self.waiting_since is None:
            self.waiting_since = now
        refused = {pocket.refused for pocket in self.pockets if self._out_of(pocket)}
        if _Refusal.EMPTY in refused:
            self._cut(ErrorCode.QUOTA_EXCEEDED)
        elif now >= self.waiting_since + self._wait_max_s:
            known = _Refusal.WAIT in refused
            self._cut(ErrorCode.QUOTA_EXCEEDED if known else ErrorCode.UNAVAILABLE)

    @property
    def _wait_max_s(self) -> float:
        return UNFUNDED_WAIT_MAX_S if self.state is PurseState.UNFUNDED else WAIT_MAX_S

    def _out_of(self, pocket: Pocket) -> bool:
        return pocket.tokens(self.prompt_tokens) <= self.received

    def _cut(self, code: ErrorCode) -> None:
        self.state = PurseState.OVER
        self.out.append(Cut(code))

    def _ask_if_due(self, pocket: Pocket, now: float) -> None:
        if pocket.asking:
            return
        ahead = pocket.tokens(self.prompt_tokens) - self.received
        waiting = pocket.refused is not None
        needed = ahead <= (0 if waiting else pocket.low)
        if needed and (not waiting or now >= self.ask_at):
            self._ask(pocket, now, AHEAD_TOKENS)
        elif now >= pocket.asked_at + RENEW_S:
            # Where others wait, what the engine was not given goes back.
            self._ask(pocket, now, None if pocket.dry or self.state is PurseState.WAITING else 0)

    def _ask(self, pocket: Pocket, now: float, ahead: int | None) -> None:
        base, each = pocket.tariff.held_for(self.prompt_tokens), pocket.tariff.output
        if ahead is None:
            want = base + max(self.given, self.received) * each
        elif ahead:
            want = base + (self.received + ahead) * each
        else:
            want = pocket.held
        ttl_s = self.resume_ttl_s + TTL_BEYOND_RESUME_S if self.lasting else TTL_S
        pocket.asking, pocket.asked_at = True, now
        # Nothing of a prompt is used before it is paid for.
        used = 0 if self.state is PurseState.UNFUNDED else base + self.received * each
        self.out.append(
            Ask(
                pocket.account,
                Hold(
                    self.name,
                    want=want,
                    least=base + (self.received + 1) * each,
                    used=used,
                    step=each,
                    ttl_ms=round(ttl_s * 1000),
                    returns=ahead is None,
                    lasting=self.lasting,
                ),
            )
        )
