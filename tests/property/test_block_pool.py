"""The block pool against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from inference.engine.block_pool import BlockPool

TOTAL = 12


class PoolMachine(RuleBasedStateMachine):
    """Tables allocate, share and let go in any order."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL, 16)
        self.held: list[list[int]] = []

    @rule(target=tables, count=st.integers(0, TOTAL + 2))
    def allocate(self, count: int) -> list[int]:
        """Succeeds exactly when so many are free, and gives blocks that nobody holds."""
        free = TOTAL - len({b for table in self.held for b in table})
        blocks = self.pool.allocate(count)
        assert (blocks is not None) == (count <= free)
        table = blocks or []
        assert not {b for other in self.held for b in other} & set(table)
        self.held.append(table)
        return table

    @rule(target=tables, table=tables)
    def share(self, table: list[int]) -> list[int]:
        """A second table of the same blocks."""
        copy = list(table)
        self.pool.share(copy)
        self.held.append(copy)
        return copy

    @rule(table=consumes(tables))
    def release(self, table: list[int]) -> None:
        """A table lets go."""
        self.pool.release(table)
        index = next(i for i, held in enumerate(self.held) if held is table)
        del self.held[index]

    @invariant()
    def free_and_held_make_the_total(self) -> None:
        """Nothing is lost or held twice by accident."""
        self.pool.check(self.held)
        assert self.pool.free == TOTAL - len({b for table in self.held for b in table})


TestPool = pytest.mark.timeout(60)(PoolMachine.TestCase)
