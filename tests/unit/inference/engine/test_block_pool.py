"""The block pool by example; by rules in tests/property."""

from __future__ import annotations

import pytest

from inference.engine.block_pool import BlockPool


def test_all_or_nothing() -> None:
    """An allocation that does not fit changes nothing."""
    pool = BlockPool(4, 16)
    first = pool.allocate(3)
    assert first is not None
    assert pool.allocate(2) is None
    assert pool.free == 1
    pool.release(first)
    assert pool.free == 4


def test_a_shared_block_is_free_after_its_last_holder() -> None:
    """Two tables may hold a block; it returns with the second release."""
    pool = BlockPool(2, 16)
    table = pool.allocate(1)
    assert table is not None
    pool.share(table)
    pool.check([table, table])
    pool.release(table)
    assert pool.free == 1
    pool.release(table)
    assert pool.free == 2


def test_a_lost_block_is_noticed() -> None:
    """`check` fails when a table and the references differ."""
    pool = BlockPool(2, 16)
    pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.check([])


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for_tokens(tokens: int, blocks: int) -> None:
    """A block begun is a block needed."""
    assert BlockPool(9, 16).blocks_for(tokens) == blocks
