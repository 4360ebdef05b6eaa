"""Tables begin with what is cached and grow by what is their own."""

from __future__ import annotations

from inference.engine.block_pool import BlockPool
from inference.engine.block_tables import BlockTables
from inference.engine.limits import EngineLimits
from inference.engine.sequence import Sequence

SIZE = 4


def _sequence(prompt: list[int], sequence_id: int = 1) -> Sequence:
    return Sequence(id=sequence_id, prompt_ids=prompt, answer_ids=[], arrival=0.0)


def test_tables_begin_with_what_is_cached() -> None:
    """A sequence starts after the shared blocks, and what it adds is its own."""
    tables = BlockTables(BlockPool(10, SIZE), EngineLimits())
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
    tables = BlockTables(BlockPool(10, SIZE), EngineLimits(prefix_cache=False))
    first = _sequence([1] * 8)
    tables.begin(first)
    tables.grow(first, 2)
    tables.advance(first, 8)
    tables.vacate(first)
    tables.begin(first)
    assert first.block_table == []
    assert tables.pool.kept == 0


def test_blocks_that_left_the_window_are_given_back_and_the_table_keeps_its_length() -> None:
    """With a window of 6, after 10 tokens those from 5 on are read: block 0 is free, 1 is not."""
    tables = BlockTables(BlockPool(10, SIZE, window=6), EngineLimits(prefix_cache=False))
    sequence = _sequence(list(range(30)))
    tables.begin(sequence)
    tables.grow(sequence, 3)
    before = sequence.block_table
    tables.advance(sequence, 8)
    assert (tables.pool.free, sequence.dropped) == (7, 0)
    tables.advance(sequence, 2)
    assert (tables.pool.free, sequence.dropped) == (8, 1)
    assert sequence.block_table == [0, *before[1:]]
    assert before == [0, 1, 2]  # the list that a plan holds is another
    assert tables.missing(sequence, 12) == 0
    tables.check([sequence])
    tables.vacate(sequence)
    assert tables.pool.free == 10


def test_a_dropped_block_is_found_again_by_who_begins_alike() -> None:
    """What left one sequence's window is kept under its name for another's beginning."""
    tables = BlockTables(BlockPool(20, SIZE, window=6), EngineLimits())
    first, second = _sequence(list(range(20))), _sequence([*range(9), 77], sequence_id=2)
    tables.begin(first)
    tables.grow(first, 5)
    tables.advance(first, 20)
    assert first.dropped == 3
    tables.begin(second)
    assert (second.computed, second.dropped) == (8, 0)
    tables.check([first, second])


def test_in_a_window_a_long_prompt_needs_the_blocks_of_a_window_and_a_step() -> None:
    """Admission asks for what is held at one time, not for the whole prompt."""
    limits = EngineLimits(batch_max=1, step_tokens_max=8)
    tables = BlockTables(BlockPool(100, SIZE, window=6), limits)
    assert tables.needed(_sequence([1] * 300)) == 5
    assert tables.needed(_sequence([1] * 8)) == 2
    unbounded = BlockTables(BlockPool(100, SIZE), limits)
    assert unbounded.needed(_sequence([1] * 300)) == 75
