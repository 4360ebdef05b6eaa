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
# Share of the batch that decodes even then: running streams slow down and never stand still.
DECODES_KEPT = 0.25


@dataclass(slots=True)
class _Draft:
    """A plan in the making.

    `ready` may decode and are not planned yet. `budget` is what is left of the step, `prompt_budget`
    what prompts may have of it. `starved`: somebody who runs lacks blocks, so nobody new begins.
    """

    now: float
    budget: int
    ready: list[Sequence]
    prompt_budget: int = 0
    decodes: list[PlanRow] = field(default_factory=list)
    chunks: list[PlanRow] = field(default_factory=list)
    planned: set[int] = field(default_factory=set)
    starved: bool = False

    def add(self, rows: list[PlanRow], sequence: Sequence, count: int) -> None:
        rows.append(sequence.row(count))
        self.planned.add(sequence.id)
        self.budget -= count
        sequence.account.charge(count)


class Scheduler:
    """Plans steps over the sequences in their `places`, and learns what they cost."""

    def __init__(self, pool: BlockPool, limits: EngineLimits, cold_blocks: int = 0) -> None:
        self.places = Places(pool, limits, cold_blocks)
        self.cost = StepCost()
        self._limits = limits
        self._step = 0
        self._shape = (0, 0)
        self._ordinarily = (self._decode, self._allow_prompts, self._prefill, self._admit)
        # Unfinished prompts hold blocks and give nothing; a first token is what people wait for.
        self._when_scarce = (
            self._decode_first_tokens,
            self._finish_prompts,
            self._prefill,
            self._decode,
            self._admit,
        )

    def plan(self, now: float) -> StepPlan:
        """The rows of the next step; none when nothing can run now."""
        self._step += 1
        self.places.shares.tick()
        budget = self._limits.step_tokens_max
        draft = _Draft(now, budget, self.places.batch.decodable(now))
        pool = self.places.pool
        scarce = pool.free < LOW_WATERMARK * pool.total
        for stage in self._when_scarce if scarce else self._ordinarily:
            stage(draft)
        decodes = len(draft.decodes)
        self._shape = (decodes, budget - draft.budget - decodes)
        rows = draft.decodes + draft.chunks
        # Without rows nobody reads or overwrites a block: the copies wait for a plan that has some.
        return StepPlan(rows, self.places.tables.tier.take_copies() if rows else [])

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

    def _decode(self, draft: _Draft) -> None:
        """One token for each that is ready; if those are too many, they take turns."""
        ready = draft.ready
        room = min(self._limits.batch_max - len(draft.decodes), draft.budget)
        if len(ready) > room:
            ready.sort(key=lambda s: s.last_step)
            del ready[room:]
        for sequence in ready:
            # An earlier one of this loop may have taken its blocks.
            if sequence.state is SequenceState.DECODE and self._grow(
                sequence, sequence.total, draft
            ):
                sequence.last_step = self._step
                draft.add(draft.decodes, sequence, 1)

    def _decode_first_tokens(self, draft: _Draft) -> None:
        others = [s for s in draft.ready if s.answer_ids]
        draft.ready = [s for s in draft.ready if not s.answer_ids]
        self._decode(draft)
        draft.ready = others

    def _allow_prompts(self, draft: _Draft) -> None:
        """Prompts may have what running streams do not feel."""
        allowed = allowance(self._limits, self.cost, decodes=len(draft.decodes))
        draft.prompt_budget = min(draft.budget, allowed)

    def _finish_prompts(self, draft: _Draft) -> None:
        """Prompts may have the step, but for a share in which running streams take turns."""
        kept = min(len(draft.ready), max(int(self._limits.batch_max * DECODES_KEPT), 1))
        draft.prompt_budget = max(draft.budget - kept, 0)

    def _prefill(self, draft: _Draft) -> None:
        """Chunks of prompts that have begun."""
        prompts = self.places.batch.prefilling.values()
        for sequence in sorted(prompts, key=lambda s: (s.account.virtual, rank(s))):
            if draft.prompt_budget <= 0:
                return
            if sequence.state is SequenceState.PREFILL:
                self._chunk(sequence, draft)

    def _admit(self, draft: _Draft) -> None:
        """Whose turn it is, while there is room."""
        places = self.places
        while (
            min(draft.prompt_budget, draft.budget) > 0
            and not draft.starved
            and len(places.batch) < places.batch.bound(self._limits.batch_max)
            and (sequence := places.waiting_room.next()) is not None
            # Who is next is not overtaken by who is smaller.
            and places.admit(sequence, draft.planned)
        ):
            self._chunk(sequence, draft)

    def _chunk(self, sequence: Sequence, draft: _Draft) -> None:
        # The last token chooses the first of the answer, so it is kept back until that is due.
        kept_back = 1 if sequence.pace.due > draft.now else 0
        remaining = sequence.remaining - kept_back
        if remaining <= 0:
            self.places.batch.prefilled(sequence)
            return
        count = piece(remaining, min(draft.prompt_budget, draft.budget))
        if self._grow(sequence, sequence.computed + count, draft):
            draft.add(draft.chunks, sequence, count)
            draft.prompt_budget -= count

    def _grow(self, sequence: Sequence, tokens: int, draft: _Draft) -> bool:
        has_grown = self.places.grow(sequence, tokens, draft.planned)
        draft.starved |= not has_grown
        return has_grown
