"""Sequences' block tables: begun with what is cached, grown as they compute, given back."""

from __future__ import annotations

from inference.engine.block_pool import BlockPool
from inference.engine.limits import EngineLimits
from inference.engine.offload import ColdTier
from inference.engine.prefix_cache import PrefixCache
from inference.engine.sequence import Sequence

__all__ = ["BlockTables"]


class BlockTables:
    """The one place where a sequence gains or loses blocks.

        table   0 ... dropped ................. computed ...... len(table)
                nobody's    | held, still read         | held, to be filled

    Blocks that left the model's window are given back at once; the table keeps its length.
    """

    def __init__(self, pool: BlockPool, limits: EngineLimits, cold_blocks: int = 0) -> None:
        self.pool = pool
        self._step_tokens_max = limits.step_tokens_max
        self.tier = ColdTier(cold_blocks)
        self._cache = (
            PrefixCache(pool, self.tier, limits.public_prefix) if limits.prefix_cache else None
        )

    def marks(self) -> list[int]:
        """Marks of the prompts' beginnings that are cached; any thread may ask."""
        return [] if self._cache is None else self._cache.marks()

    def begin(self, sequence: Sequence) -> None:
        """Give a sequence without blocks those that hold its beginning already."""
        assert not sequence.block_table  # noqa: S101
        if self._cache is not None:
            sequence.block_table = self._cache.take(sequence)
            sequence.computed = len(sequence.block_table) * self.pool.block_size
            sequence.dropped = self.pool.out_of_window(sequence.computed)

    def missing(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that it lacks to hold so many tokens; 0 or less: none."""
        return self.pool.blocks_for(tokens) - len(sequence.block_table)

    def needed(self, sequence: Sequence) -> int:
        """Blocks that it lacks to compute all its tokens, some of which may leave the window first."""
        lacking = self.missing(sequence, sequence.total)
        if self.pool.window is None:
            return lacking
        at_once = self.pool.blocks_for(self.pool.window + self._step_tokens_max) + 1
        return min(lacking, at_once - len(sequence.held))

    def awaits(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether `other`, which runs, is about to fill the first block that this one lacks."""
        end = (len(sequence.block_table) + 1) * self.pool.block_size
        return (
            self._cache is not None
            and sequence.salt == other.salt
            and other.computed < end <= other.total
            and end < sequence.total
            and sequence.tokens(0, end) == other.tokens(0, end)
        )

    def grow(self, sequence: Sequence, count: int) -> None:
        """So many blocks more; they must be free."""
        blocks = self.pool.allocate(count)
        assert blocks is not None  # noqa: S101
        sequence.block_table.extend(blocks)

    def advance(self, sequence: Sequence, count: int) -> None:
        """So many tokens more are computed: blocks that are full now may be found by others."""
        before = sequence.computed
        sequence.computed = after = before + count
        size = self.pool.block_size
        if self._cache is not None and after // size > before // size:
            self._cache.store(sequence, before)
        left = self.pool.out_of_window(after)
        if left > sequence.dropped:
            table = sequence.block_table
            self.pool.release(table[sequence.dropped : left])
            # A new list: the old one may still be in the hands of whoever read the last plan.
            sequence.block_table = [0] * left + table[left:]
            sequence.dropped = left

    def vacate(self, sequence: Sequence) -> None:
        """Take its blocks; what is cached it may find again."""
        self.pool.release(sequence.held)
        sequence.block_table = []  # a new list, as above
        sequence.computed = sequence.dropped = 0

    def check(self, sequences: list[Sequence]) -> None:
        """Assert that these and nobody else hold blocks, and that they hold enough."""
        self.pool.check(s.held for s in sequences)
        if self._cache is not None:
            self._cache.check()
        self.tier.check()
        for sequence in sequences:
            holds = len(sequence.block_table) * self.pool.block_size
            assert sequence.computed <= holds  # noqa: S101
            assert sequence.computed <= sequence.total  # noqa: S101
            assert sequence.dropped == self.pool.out_of_window(sequence.computed)  # noqa: S101
            assert not any(sequence.block_table[: sequence.dropped])  # noqa: S101
