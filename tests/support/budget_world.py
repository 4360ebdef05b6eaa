"""Streams, gateways and one budget's books, with every message late, lost or overtaken as chance will have it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

from gateway.budgets.account import Account, Answers, Hold, Seed, Settle
from gateway.budgets.model import Tariff
from gateway.budgets.purse import (
    Answered,
    Ask,
    Begin,
    Credit,
    Cut,
    Funded,
    Purse,
    Received,
    Tick,
    Want,
)
from seedance.protocol.errors import ErrorCode
from seedance.protocol.frames import Usage

__all__ = ["BudgetWorld"]

STEP_S = 0.01
RESUME_TTL_S = 120.0
ACCOUNT = "a"


@dataclass
class _Stream:
    """One generation: what its client asked for, what it has, and who has its purse now."""

    name: str
    prompt: int
    length: int
    lasting: bool
    gateway: int
    purse: Purse
    # How many tokens its engine may have made, as credit has it.
    may: int = 0
    framed: int = 0
    funded: bool = False
    cut: ErrorCode | None = None
    ended: bool = False
    ended_ms: int = 0
    lost: bool = False


@dataclass
class BudgetWorld:
    """`step` does one thing at random; `settle_all` lets everything come to its end.

    `ledger`: there is one to say what was before new books. `slack`: what running streams held in
    books that were lost.
    """

    random: Random
    limit: int
    tariff: Tariff = field(default_factory=Tariff)
    gateways: int = 2
    account: Account = field(default_factory=Account)
    streams: list[_Stream] = field(default_factory=list)
    wire: list[tuple[_Stream, Purse, Hold | Settle]] = field(default_factory=list)
    now: float = 1.0
    ledger: bool = False
    slack: int = 0
    born_ms: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def billed(self) -> int:
        """What the ledger would have: every prompt that was computed, every token that was framed."""
        return sum(self.cost(s) for s in self.streams if s.funded and not s.lost)

    def cost(self, stream: _Stream) -> int:
        """What a stream cost until now."""
        return self.tariff.cost(Usage(stream.prompt, 0, stream.framed))

    # ------------------------------------------------------------ what happens

    def open(self, prompt: int, length: int, *, lasting: bool = True) -> None:
        """A client asks for something."""
        name, gateway = f"s{len(self.streams)}", self.random.randrange(self.gateways)
        purse = Purse(name, lasting, RESUME_TTL_S)
        stream = _Stream(name, prompt, length, lasting, gateway, purse)
        self.streams.append(stream)
        stream.may = purse.call(0, 16)
        self._do(stream, Begin(prompt, [(ACCOUNT, self.tariff)]))

    def make_token(self) -> None:
        """An engine makes a token for somebody who has credit, and it is framed."""
        able = [s for s in self.streams if not s.ended and s.framed < min(s.may, s.length)]
        if not able:
            return
        stream = self.random.choice(able)
        stream.framed += 1
        self._do(stream, Received(stream.framed))
        if stream.framed == stream.length:
            self._end(stream)
        elif not stream.ended:
            self._do(stream, Want(1))

    def deliver(self, *, lose: float = 0.0) -> None:
        """A request reaches the account; perhaps its answer is lost."""
        if not self.wire:
            return
        # Of one stream in order, as an exchange keeps it.
        stream = self.random.choice(self.wire)[0]
        at = next(i for i, (whose, _, _) in enumerate(self.wire) if whose is stream)
        _, purse, request = self.wire.pop(at)
        answers = self._apply(request)
        if answers.born_ms != self.born_ms[stream.gateway]:
            self.born_ms[stream.gateway] = answers.born_ms
            for other in self.streams:
                if other.gateway == stream.gateway and not other.ended:
                    other.purse.renew(ACCOUNT)
                    self._do(other, Tick())
        if answers.unseeded and self.random.random() < 0.5:
            self._apply(Seed(self._ended_before(answers.born_ms)))
        lost = self.random.random() < lose
        if isinstance(request, Settle):
            if lost:
                self.wire.insert(at, (stream, purse, request))
        elif stream.purse is purse:
            answer = None if lost else answers.holds[0]
            self._do(stream, Answered(ACCOUNT, answer))

    def _apply(self, request: Hold | Settle | Seed) -> Answers:
        now_ms = round(self.now * 1000)
        return self.account.apply([request], self.limit, None, now_ms, now_ms if self.ledger else 0)

    def _ended_before(self, moment_ms: int) -> int:
        """What the ledger says."""
        ended = [s for s in self.streams if s.ended and s.funded and s.ended_ms < moment_ms]
        return sum(self.cost(s) for s in ended)

    def forget(self) -> None:
        """The store loses its data; nothing else happens in that millisecond."""
        self.account = Account()
        self.now += 0.002
        for stream in self.streams:
            if stream.funded and not stream.ended:
                held = sum(pocket.held for pocket in stream.purse.pockets)
                self.slack += max(held, self.cost(stream))

    def tick(self, seconds: float = STEP_S) -> None:
        """Time passes."""
        self.now += seconds
        for stream in self.streams:
            if not stream.ended:
                self._do(stream, Tick())

    def kill(self) -> None:
        """A gateway dies with what it had on its way; its streams go on elsewhere, or nowhere."""
        gateway = self.random.randrange(self.gateways)
        for stream in self.streams:
            if stream.gateway != gateway:
                continue
            # What it wrote down last is all that is known: settlings that were not sent are made again.
            unsent = [w for w in self.wire if w[0] is stream]
            self.wire = [w for w in self.wire if w[0] is not stream]
            reopened = any(isinstance(request, Settle) for _, _, request in unsent)
            if stream.ended and not reopened:
                continue
            if not stream.lasting:
                stream.lost = stream.ended = True
                continue
            stream.gateway = (gateway + 1) % self.gateways
            stream.ended = False
            self._adopt(stream)

    def _adopt(self, stream: _Stream) -> None:
        known = max(0, stream.framed - self.random.randrange(4))
        stream.purse = Purse(stream.name, stream.lasting, RESUME_TTL_S)
        known = known if stream.funded else 0
        stream.may = known + stream.purse.call(known, 16)
        self._do(stream, Begin(stream.prompt, [(ACCOUNT, self.tariff)]))
        # The instance says again what the store did not know, and the client says what it has.
        self._do(stream, Received(stream.framed))
        if stream.framed == stream.length or stream.cut:
            self._end(stream)

    def _end(self, stream: _Stream) -> None:
        stream.ended = True
        usage = Usage(stream.prompt, 0, stream.framed) if stream.funded else None
        stream.ended_ms = round(self.now * 1000)
        for _, settle in stream.purse.settle(usage, stream.ended_ms):
            self.wire.append((stream, stream.purse, settle))

    def _do(self, stream: _Stream, event: Begin | Want | Received | Answered | Tick) -> None:
        for effect in stream.purse.step(event, self.now):
            match effect:
                case Ask(_, hold):
                    self.wire.append((stream, stream.purse, hold))
                case Funded():
                    stream.funded = True
                case Credit(tokens):
                    stream.may += tokens
                case Cut(code):
                    stream.cut = code
                    self._end(stream)

    # ------------------------------------------------------------ runs

    def step(self) -> None:
        """One thing at random."""
        done = self.random.choices(
            [self.make_token, lambda: self.deliver(lose=0.1), self.tick, self.kill],
            weights=[10, 10, 3, 0.2],
        )[0]
        done()

    def settle_all(self) -> None:
        """Go on without faults until every stream has ended and everything is settled."""
        for _ in range(100_000):
            if all(s.ended for s in self.streams) and not self.wire:
                return
            self.make_token()
            self.deliver()
            self.deliver()
            if self.random.random() < 0.2:
                self.tick()
        raise AssertionError("streams that never end")
