"""Sequences' block tables: begun with what is cached, grown as they compute, given back."""

from __future__ import annotations

from inference.engine.block_pool import BlockPool
from inference.engine.prefix_cache import PrefixCache
from inference.engine.sequence import Sequence

__all__ = ["BlockTables"]


class BlockTables:
    """The one place where a sequence gains or loses blocks. `cached` false: nothing is shared."""

    def __init__(self, pool: BlockPool, *, cached: bool) -> None:
        self.pool = pool
        self._cache = PrefixCache(pool) if cached else None

    def begin(self, sequence: Sequence) -> None:
        """Give a sequence without blocks those that hold its beginning already."""
        assert not sequence.block_table  # noqa: S101
        if self._cache is not None:
            sequence.block_table = self._cache.find(sequence)
            self.pool.share(sequence.block_table)
            sequence.computed = len(sequence.block_table) * self.pool.block_size

    def missing(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that it lacks to hold so many tokens; 0 or less: none."""
        return self.pool.blocks_for(tokens) - len(sequence.block_table)

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

    def vacate(self, sequence: Sequence) -> None:
        """Take its blocks; what is cached it may find again."""
        self.pool.release(sequence.block_table)
        # A new list: the old one may still be in the hands of whoever read the last plan.
        sequence.block_table = []
        sequence.computed = 0

    def check(self, sequences: list[Sequence]) -> None:
        """Assert that these and nobody else hold blocks, and that they hold enough."""
        self.pool.check(s.block_table for s in sequences)
        if self._cache is not None:
            self._cache.check()
        for sequence in sequences:
            holds = len(sequence.block_table) * self.pool.block_size
            assert sequence.computed <= holds  # noqa: S101
            assert sequence.computed <= sequence.total  # noqa: S101
