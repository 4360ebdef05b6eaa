"""The block pool against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from inference.engine.block_pool import BlockPool

TOTAL = 12


class PoolMachine(RuleBasedStateMachine):
    """Tables allocate, share, name blocks and let go in any order."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL, 16)
        self.pool.on_overwrite = self.overwritten
        self.held: list[list[int]] = []
        self.named: set[int] = set()

    def overwritten(self, block: int) -> None:
        """Only a named block that nobody holds may be overwritten, and it is told."""
        assert block not in {b for table in self.held for b in table}
        self.named.remove(block)

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

    @rule(table=tables)
    def name(self, table: list[int]) -> None:
        """A held table's contents are worth keeping."""
        for block in table:
            self.pool.name(block)
            self.named.add(block)

    @rule(target=tables, data=st.data())
    def revive(self, data: st.DataObject) -> list[int]:
        """A kept block is found again and shared."""
        kept = self.named - {b for table in self.held for b in table}
        table = data.draw(st.lists(st.sampled_from(sorted(kept)), unique=True)) if kept else []
        self.pool.share(table)
        self.held.append(table)
        return table

    @rule(table=consumes(tables))
    def release(self, table: list[int]) -> None:
        """A table lets go."""
        self.pool.release(table)
        index = next(i for i, held in enumerate(self.held) if held is table)
        del self.held[index]

    @invariant()
    def free_and_held_make_the_total(self) -> None:
        """Nothing is lost, held twice by accident, or overwritten while others are free."""
        self.pool.check(self.held)
        held = {b for table in self.held for b in table}
        assert self.pool.free == TOTAL - len(held)
        assert self.pool.kept == len(self.named - held)


TestPool = pytest.mark.timeout(60)(PoolMachine.TestCase)
