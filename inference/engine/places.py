"""Where sequences are: who waits, runs or pauses, and whose the blocks are."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

from inference.engine.batch import Batch
from inference.engine.block_pool import BlockPool
from inference.engine.block_tables import BlockTables
from inference.engine.limits import EngineLimits
from inference.engine.policy import victim
from inference.engine.sequence import Sequence, SequenceState
from inference.engine.waiting_room import WaitingRoom
from mesh.fair_share import FairShare

__all__ = ["Places"]


class Places:
    """Owns the sequences that have not ended, and their blocks.

    WAITING           PREFILL, DECODE   PAUSED, with blocks   PAUSED, without
    waiting room      batch             paused                parked
    """

    def __init__(self, pool: BlockPool, limits: EngineLimits, cold_blocks: int = 0) -> None:
        self.pool = pool
        self.tables = BlockTables(pool, limits, cold_blocks)
        self.shares = FairShare(limits.tenant_weights)
        self.waiting_room = WaitingRoom()
        self.batch = Batch()
        self.preemptions = 0
        self._paused: dict[int, Sequence] = {}
        self._parked: dict[int, Sequence] = {}

    @property
    def running(self) -> int:
        """Sequences in the running batch."""
        return len(self.batch)

    @property
    def waiting(self) -> int:
        """Sequences that want to run and hold no blocks."""
        return len(self.waiting_room)

    @property
    def queued(self) -> int:
        """Sequences that hold no blocks, wanting to run or not: what the queue's bound counts."""
        return len(self.waiting_room) + len(self._parked)

    @property
    def alive(self) -> int:
        """All sequences that have not ended."""
        return self.queued + len(self.batch) + len(self._paused)

    def add(self, sequence: Sequence, *, eligible: bool) -> None:
        """A new sequence: it waits, or is paused until `resume`."""
        sequence.account = self.shares.account(sequence.tenant, sequence.weight)
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
        self.shares.enter(sequence.account)
        self.batch.add(sequence)

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
        self.tables.vacate(sequence)
        sequence.move(SequenceState.ENDED)

    def admit(self, sequence: Sequence, planned: Collection[int] = ()) -> bool:
        """Let one that waits run, if there is room for it.

        If somebody who is `planned` computes its beginning at this moment it waits: so the choices
        of one prompt, or a burst of questions about one text, compute what they share once.
        """
        # Shared first, so that nobody takes the blocks while room is made for the rest.
        self.tables.begin(sequence)
        runners = self.batch.prefilling.values()
        if any(s.id in planned and self.tables.awaits(sequence, s) for s in runners) or (
            not self._make_room_for(sequence)
        ):
            self.tables.vacate(sequence)
            return False
        self.waiting_room.take(sequence)
        sequence.move(SequenceState.PREFILL)
        self.batch.add(sequence)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, len(sequence.prompt_ids))
        return True

    def grow(self, sequence: Sequence, tokens: int, planned: set[int]) -> bool:
        """Give it blocks for so many tokens, taking from the less urgent; false: there are none.

        Whoever is `planned` reads its blocks in the coming step, and keeps them.
        """
        missing = self.tables.missing(sequence, tokens)
        if missing <= 0:
            return True
        while missing > self.pool.free:
            holders = chain(self._paused.values(), self.batch)
            loser = victim(sequence, (s for s in holders if s.id not in planned))
            if loser is None:
                return False
            self._preempt(loser)
        self.tables.grow(sequence, missing)
        return True

    def check(self) -> None:
        """Assert what must hold after every step."""
        paused = [*self._paused.values(), *self._parked.values()]
        sequences = [*self.waiting_room, *self.batch, *paused]
        self.tables.check(sequences)
        self.batch.check()
        self.waiting_room.check()
        assert len({s.id for s in sequences}) == len(sequences)  # noqa: S101
        assert all(s.state is SequenceState.WAITING for s in self.waiting_room)  # noqa: S101
        assert all(s.state is SequenceState.PAUSED for s in paused)  # noqa: S101
        assert all(s.block_table for s in self._paused.values())  # noqa: S101
        assert not any(s.block_table for s in [*self.waiting_room, *self._parked.values()])  # noqa: S101
        for account in {s.account for s in sequences}:
            wanting = [s for s in sequences if s.account is account and s not in paused]
            assert account.wanting == len(wanting)  # noqa: S101

    def _make_room_for(self, sequence: Sequence) -> bool:
        """Whether all its known tokens fit, with a block to grow for each that runs already.

        Paused sequences lose their blocks to one that can run, if that makes the difference.
        """
        need = self.tables.needed(sequence) + len(self.batch)
        paused = (s.held for s in self._paused.values())
        if need > self.pool.free and need > self.pool.free + self.pool.freed_by(paused):
            return False
        while need > self.pool.free:
            loser = victim(None, self._paused.values())
            assert loser is not None  # noqa: S101
            self._preempt(loser)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        if sequence.state is SequenceState.PAUSED:
            self._dispossess(sequence)
            return
        self._remove(sequence)
        self.tables.vacate(sequence)
        sequence.preemptions += 1
        sequence.move(SequenceState.WAITING)
        self._wait(sequence)

    def _dispossess(self, sequence: Sequence) -> None:
        """A paused sequence loses its blocks."""
        self.tables.vacate(sequence)
        del self._paused[sequence.id]
        self._parked[sequence.id] = sequence

    def _wait(self, sequence: Sequence) -> None:
        self.shares.enter(sequence.account)
        self.waiting_room.add(sequence)

    def _remove(self, sequence: Sequence) -> None:
        """Take it from its place, before its state changes."""
        match sequence.state:
            case SequenceState.WAITING:
                self.waiting_room.remove(sequence)
                self.shares.leave(sequence.account)
            case SequenceState.PREFILL | SequenceState.DECODE:
                self.batch.remove(sequence)
                self.shares.leave(sequence.account)
            case SequenceState.PAUSED:
                (self._paused if sequence.block_table else self._parked).pop(sequence.id)
            case SequenceState.ENDED:
                pass
