"""What runs in the next step.

There is no prefill phase and no decode phase, only tokens known against tokens computed: each step
has one budget of tokens, given first to sequences that want one token (decodes), then to those
that want many (prefill chunks), then to those that wait. When blocks run out, somebody less urgent
loses his and computes them again later; his text goes on exactly, because what is sampled depends
on nothing but tokens, seed and position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from inference.engine.batch import Batch
from inference.engine.block_pool import BlockPool
from inference.engine.block_tables import BlockTables
from inference.engine.chunking import allowance, piece
from inference.engine.fair_share import FairShare
from inference.engine.limits import EngineLimits
from inference.engine.plan import PlanRow, StepPlan
from inference.engine.policy import rank, victim
from inference.engine.sequence import Sequence, SequenceState
from inference.engine.step_cost import StepCost
from inference.engine.waiting_room import WaitingRoom

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
    """Owns the sequences' places and their blocks.

    WAITING           PREFILL, DECODE   PAUSED, with blocks   PAUSED, without
    waiting room      batch             paused                parked
    """

    def __init__(self, pool: BlockPool, limits: EngineLimits) -> None:
        self.pool = pool
        self.preemptions = 0
        self.cost = StepCost()
        self._tables = BlockTables(pool, cached=limits.prefix_cache)
        self._shares = FairShare(limits.tenant_weights)
        self._limits = limits
        self._waiting = WaitingRoom()
        self._batch = Batch()
        self._paused: dict[int, Sequence] = {}
        self._parked: dict[int, Sequence] = {}
        self._step = 0
        self._shape = (0, 0)

    @property
    def running(self) -> int:
        """Sequences in the running batch."""
        return len(self._batch)

    @property
    def waiting(self) -> int:
        """Sequences that want to run and hold no blocks."""
        return len(self._waiting)

    @property
    def queued(self) -> int:
        """Sequences that hold no blocks, wanting to run or not: what the queue's bound counts."""
        return len(self._waiting) + len(self._parked)

    @property
    def alive(self) -> int:
        """All sequences that have not ended."""
        return self.queued + len(self._batch) + len(self._paused)

    def add(self, sequence: Sequence, *, eligible: bool) -> None:
        """A new sequence: it waits, or is paused until `resume`."""
        sequence.account = self._shares.account(sequence.tenant)
        if eligible:
            self._wait(sequence)
        else:
            sequence.move(SequenceState.PAUSED)
            self._parked[sequence.id] = sequence

    def pause(self, sequence: Sequence) -> None:
        """Leave it out of the batch; it keeps its blocks."""
        if sequence.state in {SequenceState.PAUSED, SequenceState.ENDED}:
            return
        self._remove(sequence)
        sequence.move(SequenceState.PAUSED)
        (self._paused if sequence.block_table else self._parked)[sequence.id] = sequence

    def resume(self, sequence: Sequence) -> None:
        """It may run again."""
        if sequence.state is not SequenceState.PAUSED:
            return
        self._remove(sequence)
        if not sequence.block_table:
            sequence.move(SequenceState.WAITING)
            self._wait(sequence)
            return
        decodes = sequence.remaining <= 1
        sequence.move(SequenceState.DECODE if decodes else SequenceState.PREFILL)
        self._shares.enter(sequence.account)
        self._batch.add(sequence)

    def park(self, sequence: Sequence) -> None:
        """Pause it and take its blocks: it computes them again should it go on."""
        self.pause(sequence)
        if sequence.block_table:
            self._dispossess(sequence)

    def end(self, sequence: Sequence) -> None:
        """It is over: its blocks are free at once."""
        if sequence.state is SequenceState.ENDED:
            return
        self._remove(sequence)
        self._tables.vacate(sequence)
        sequence.move(SequenceState.ENDED)

    def plan(self, now: float) -> StepPlan:
        """The rows of the next step; none when nothing can run now."""
        self._step += 1
        self._shares.tick()
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
        self._tables.advance(sequence, count)
        if sequence.state is SequenceState.PREFILL and sequence.remaining <= 1:
            self._batch.prefilled(sequence)

    def next_due(self, now: float) -> float | None:
        """When a paced sequence is due next; None: nothing comes due by itself."""
        return self._batch.next_due(now)

    def check(self) -> None:
        """Assert what must hold after every step."""
        paused = [*self._paused.values(), *self._parked.values()]
        sequences = [*self._waiting, *self._batch, *paused]
        self._tables.check(sequences)
        self._batch.check()
        self._waiting.check()
        assert len({s.id for s in sequences}) == len(sequences)  # noqa: S101
        assert all(s.state is SequenceState.WAITING for s in self._waiting)  # noqa: S101
        assert all(s.state is SequenceState.PAUSED for s in paused)  # noqa: S101
        assert all(s.block_table for s in self._paused.values())  # noqa: S101
        assert not any(s.block_table for s in [*self._waiting, *self._parked.values()])  # noqa: S101
        for account in {s.account for s in sequences}:
            wanting = [s for s in sequences if s.account is account and s not in paused]
            assert account.wanting == len(wanting)  # noqa: S101

    def _plan_decodes(self, draft: _Draft) -> None:
        ready = self._batch.decodable(draft.now)
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
        scarce = self.pool.free < LOW_WATERMARK * self.pool.total
        return allowance(self._limits, self.cost, decodes=decodes, scarce=scarce)

    def _plan_prefills(self, draft: _Draft) -> None:
        for sequence in sorted(
            self._batch.prefilling.values(), key=lambda s: (s.account.virtual, rank(s))
        ):
            if draft.budget <= 0:
                return
            if sequence.state is SequenceState.PREFILL:
                self._prefill(sequence, draft)

    def _admit(self, draft: _Draft) -> None:
        while (
            draft.budget > 0
            and not draft.starved
            and len(self._batch) < self._limits.batch_max
            and (sequence := self._waiting.next()) is not None
            # Who is next is not overtaken by who is smaller.
            and self._make_room_for(sequence)
        ):
            self._waiting.take(sequence)
            sequence.move(SequenceState.PREFILL)
            self._batch.add(sequence)
            if sequence.cached_tokens is None:
                sequence.cached_tokens = min(sequence.computed, len(sequence.prompt_ids))
            self._prefill(sequence, draft)

    def _prefill(self, sequence: Sequence, draft: _Draft) -> None:
        # The last token chooses the first of the answer, so it is kept back until that is due.
        kept_back = 1 if sequence.pace.due > draft.now else 0
        remaining = sequence.remaining - kept_back
        if remaining <= 0:
            self._batch.prefilled(sequence)
            return
        count = piece(remaining, draft.budget)
        if self._grow(sequence, sequence.computed + count, draft):
            draft.add(sequence, count)

    def _make_room_for(self, sequence: Sequence) -> bool:
        """Whether all its known tokens fit, with a block to grow for each that runs already.

        If so it has those of its blocks that are cached. Paused sequences lose their blocks to one
        that can run, if that makes the difference.
        """
        # Shared first, so that nobody takes them while room is made for the rest.
        self._tables.begin(sequence)
        need = self._tables.missing(sequence, sequence.total) + len(self._batch)
        paused = (s.block_table for s in self._paused.values())
        if need > self.pool.free and need > self.pool.free + self.pool.freed_by(paused):
            self._tables.vacate(sequence)
            return False
        while need > self.pool.free:
            loser = victim(None, self._paused.values())
            assert loser is not None  # noqa: S101
            self._preempt(loser)
        return True

    def _grow(self, sequence: Sequence, tokens: int, draft: _Draft) -> bool:
        """Give it blocks for so many tokens, taking from the less urgent; false: not in this step."""
        missing = self._tables.missing(sequence, tokens)
        if missing <= 0:
            return True
        while missing > self.pool.free:
            loser = victim(sequence, self._holders_outside(draft))
            if loser is None:
                draft.starved = True
                return False
            self._preempt(loser)
        self._tables.grow(sequence, missing)
        return True

    def _holders_outside(self, draft: _Draft) -> Iterator[Sequence]:
        # What is planned already reads its blocks in this very step.
        everybody = chain(self._paused.values(), self._batch)
        return (s for s in everybody if s.id not in draft.planned)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        if sequence.state is SequenceState.PAUSED:
            self._dispossess(sequence)
            return
        self._remove(sequence)
        self._tables.vacate(sequence)
        sequence.preemptions += 1
        sequence.move(SequenceState.WAITING)
        self._wait(sequence)

    def _dispossess(self, sequence: Sequence) -> None:
        """A paused sequence loses its blocks."""
        self._tables.vacate(sequence)
        del self._paused[sequence.id]
        self._parked[sequence.id] = sequence

    def _wait(self, sequence: Sequence) -> None:
        self._shares.enter(sequence.account)
        self._waiting.add(sequence)

    def _remove(self, sequence: Sequence) -> None:
        """Take it from its place, before its state changes."""
        match sequence.state:
            case SequenceState.WAITING:
                self._waiting.remove(sequence)
                self._shares.leave(sequence.account)
            case SequenceState.PREFILL | SequenceState.DECODE:
                self._batch.remove(sequence)
                self._shares.leave(sequence.account)
            case SequenceState.PAUSED:
                (self._paused if sequence.block_table else self._parked).pop(sequence.id)
            case SequenceState.ENDED:
                pass
