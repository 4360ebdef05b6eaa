"""Tables begin with what is cached and grow by what is their own."""

from __future__ import annotations

from inference.engine.block_pool import BlockPool
from inference.engine.block_tables import BlockTables
from inference.engine.sequence import Sequence

SIZE = 4


def _sequence(prompt: list[int], sequence_id: int = 1) -> Sequence:
    return Sequence(id=sequence_id, prompt_ids=prompt, answer_ids=[], arrival=0.0)


def test_tables_begin_with_what_is_cached() -> None:
    """A sequence starts after the shared blocks, and what it adds is its own."""
    tables = BlockTables(BlockPool(10, SIZE), cached=True)
    first, second = _sequence(list(range(10))), _sequence(list(range(10)), sequence_id=2)
    tables.begin(first)
    tables.grow(first, 3)
    tables.advance(first, 6)
    tables.advance(first, 4)
    tables.begin(second)
    assert second.computed == 8
    assert second.block_table == first.block_table[:2]
    tables.grow(second, tables.missing(second, second.total))
    assert second.block_table[2] != first.block_table[2]
    tables.check([first, second])
    assert tables.pool.free == 6
    tables.vacate(first)
    tables.vacate(second)
    assert (tables.pool.free, tables.pool.kept) == (10, 2)


def test_without_the_cache_nothing_is_shared() -> None:
    """The setting turns it off whole."""
    tables = BlockTables(BlockPool(10, SIZE), cached=False)
    first = _sequence([1] * 8)
    tables.begin(first)
    tables.grow(first, 2)
    tables.advance(first, 8)
    tables.vacate(first)
    tables.begin(first)
    assert first.block_table == []
    assert tables.pool.kept == 0
