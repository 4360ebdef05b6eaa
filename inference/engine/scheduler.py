"""What runs in the next step.

There is no prefill phase and no decode phase, only tokens known against tokens computed: each step
has one budget of tokens, given first to sequences that want one token (decodes), then to those
that want many (prefill chunks), then to those that wait. When blocks run out, somebody less urgent
loses his and computes them again later; his text goes on exactly, because what is sampled depends
on nothing but tokens, seed and position.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.engine.block_pool import BlockPool
from inference.engine.chunking import allowance, piece
from inference.engine.limits import EngineLimits
from inference.engine.places import Places
from inference.engine.plan import PlanRow, StepPlan
from inference.engine.policy import rank
from inference.engine.sequence import Sequence, SequenceState
from inference.engine.step_cost import StepCost

__all__ = ["Scheduler"]

# Share of the blocks below which free ones are scarce.
LOW_WATERMARK = 0.05


@dataclass(slots=True)
class _Draft:
    """A plan in the making. `starved`: somebody who runs lacks blocks, so nobody new begins."""

    now: float
    budget: int
    rows: list[PlanRow] = field(default_factory=list)
    planned: set[int] = field(default_factory=set)
    starved: bool = False

    def add(self, sequence: Sequence, count: int) -> None:
        self.rows.append(sequence.row(count))
        self.planned.add(sequence.id)
        self.budget -= count
        sequence.account.charge(count)


class Scheduler:
    """Plans steps over the sequences in their `places`, and learns what they cost."""

    def __init__(self, pool: BlockPool, limits: EngineLimits) -> None:
        self.places = Places(pool, limits)
        self.cost = StepCost()
        self._limits = limits
        self._step = 0
        self._shape = (0, 0)

    def plan(self, now: float) -> StepPlan:
        """The rows of the next step; none when nothing can run now."""
        self._step += 1
        self.places.shares.tick()
        draft = _Draft(now, self._limits.step_tokens_max)
        self._plan_decodes(draft)
        decodes = len(draft.rows)
        draft.budget = budget = min(draft.budget, self._prefill_allowance(decodes))
        self._plan_prefills(draft)
        self._admit(draft)
        self._shape = (decodes, budget - draft.budget)
        return StepPlan(draft.rows)

    def took(self, seconds: float) -> None:
        """The step that was planned last took so long: later chunks are cut by it."""
        self.cost.observe(*self._shape, seconds)

    def computed(self, sequence: Sequence, count: int) -> None:
        """A step computed `count` tokens of it."""
        self.places.tables.advance(sequence, count)
        if sequence.state is SequenceState.PREFILL and sequence.remaining <= 1:
            self.places.batch.prefilled(sequence)

    def next_due(self, now: float) -> float | None:
        """When a paced sequence is due next; None: nothing comes due by itself."""
        return self.places.batch.next_due(now)

    def _plan_decodes(self, draft: _Draft) -> None:
        ready = self.places.batch.decodable(draft.now)
        if len(ready) > self._limits.batch_max:
            # Only sequences that came back from a pause make it more: those take turns.
            ready.sort(key=lambda s: s.last_step)
            del ready[self._limits.batch_max :]
        for sequence in ready:
            # An earlier one of this loop may have taken its blocks.
            if sequence.state is SequenceState.DECODE and self._grow(
                sequence, sequence.total, draft
            ):
                sequence.last_step = self._step
                draft.add(sequence, 1)

    def _prefill_allowance(self, decodes: int) -> int:
        scarce = self.places.pool.free < LOW_WATERMARK * self.places.pool.total
        return allowance(self._limits, self.cost, decodes=decodes, scarce=scarce)

    def _plan_prefills(self, draft: _Draft) -> None:
        for sequence in sorted(
            self.places.batch.prefilling.values(), key=lambda s: (s.account.virtual, rank(s))
        ):
            if draft.budget <= 0:
                return
            if sequence.state is SequenceState.PREFILL:
                self._prefill(sequence, draft)

    def _admit(self, draft: _Draft) -> None:
        places = self.places
        while (
            draft.budget > 0
            and not draft.starved
            and len(places.batch) < self._limits.batch_max
            and (sequence := places.waiting_room.next()) is not None
            # Who is next is not overtaken by who is smaller.
            and places.admit(sequence)
        ):
            self._prefill(sequence, draft)

    def _prefill(self, sequence: Sequence, draft: _Draft) -> None:
        # The last token chooses the first of the answer, so it is kept back until that is due.
        kept_back = 1 if sequence.pace.due > draft.now else 0
        remaining = sequence.remaining - kept_back
        if remaining <= 0:
            self.places.batch.prefilled(sequence)
            return
        count = piece(remaining, draft.budget)
        if self._grow(sequence, sequence.computed + count, draft):
            draft.add(sequence, count)

    def _grow(self, sequence: Sequence, tokens: int, draft: _Draft) -> bool:
        has_grown = self.places.grow(sequence, tokens, draft.planned)
        draft.starved |= not has_grown
        return has_grown
