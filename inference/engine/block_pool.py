"""Paged KV blocks: who holds which, counted by reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

__all__ = ["BlockPool"]


class BlockPool:
    """Hands out block numbers 0 … total-1.

    A block may be held by several tables at once (a shared prefix); it is free again when the last
    one lets go. Never-used numbers are counted, not listed, so that a pool of a million blocks
    costs nothing until it is used.
    """

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self._returned: list[int] = []
        self._next_unused = 0
        self._references: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self.total - len(self._references)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int] | None:
        """So many blocks with one reference each, or None (and nothing changes) when too few are free."""
        if count > self.free:
            return None
        reused = min(count, len(self._returned))
        blocks = [self._returned.pop() for _ in range(reused)]
        fresh = count - reused
        blocks.extend(range(self._next_unused, self._next_unused + fresh))
        self._next_unused += fresh
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each of these held blocks."""
        for block in blocks:
            assert block in self._references, f"block {block} is free"  # noqa: S101
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One holder less for each; who was the last frees the block."""
        for block in blocks:
            count = self._references[block] - 1
            if count:
                self._references[block] = count
            else:
                del self._references[block]
                self._returned.append(block)

    def check(self, tables: Iterable[list[int]]) -> None:
        """Assert that exactly these tables hold blocks, and that free and held make the total."""
        held = Counter(block for table in tables for block in table)
        assert dict(held) == self._references, "references differ from the tables"  # noqa: S101
        unused = self.total - self._next_unused
        assert len(self._returned) == len(set(self._returned)), "a block is free twice"  # noqa: S101
        assert not held.keys() & set(self._returned), "a held block is free"  # noqa: S101
        assert len(held) + len(self._returned) + unused == self.total, "blocks are lost"  # noqa: S101
