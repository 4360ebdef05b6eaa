"""Paged KV blocks: who holds which, counted by reference, and which are kept though nobody does."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

__all__ = ["BlockPool"]


def _nothing(block: int) -> None:
    """Whom an overwritten block does not concern."""


class BlockPool:
    """Hands out block numbers 0 … total-1.

        total = unused + returned + kept        + held
                ------- free ----------           in tables, counted by reference
                        contents of no more use | named contents, taken last, oldest first

    A block may be held by several tables at once (a shared prefix); when the last one lets go it is
    free again. A *named* block, one whose contents somebody may ask for again, is then kept as it
    is until no other block is free; before it is handed out `on_overwrite` is told. `window` is how
    many tokens a token reads, itself included; None: all before it. Never-used numbers are counted,
    not listed, so that a pool of a million blocks costs nothing until it is used.
    """

    def __init__(self, total: int, block_size: int, *, window: int | None = None) -> None:
        self.total = total
        self.block_size = block_size
        self.window = window
        self.on_overwrite: Callable[[int], None] = _nothing
        self._returned: list[int] = []
        self._next_unused = 0
        self._references: dict[int, int] = {}
        self._named: set[int] = set()
        self._kept: OrderedDict[int, None] = OrderedDict()  # named and not held, oldest first

    @property
    def free(self) -> int:
        """Blocks that nobody holds: all of them can be had, the kept ones too."""
        return self.total - len(self._references)

    @property
    def kept(self) -> int:
        """Blocks that nobody holds and whose contents are still there."""
        return len(self._kept)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-tokens // self.block_size)

    def out_of_window(self, computed: int) -> int:
        """Blocks at the head of a table that nobody reads again once so many tokens are computed."""
        if self.window is None:
            return 0
        return max(computed + 1 - self.window, 0) // self.block_size

    def allocate(self, count: int) -> list[int] | None:
        """So many blocks with one reference each, or None (and nothing changes) when too few are free."""
        if count > self.free:
            return None
        reused = min(count, len(self._returned))
        blocks = [self._returned.pop() for _ in range(reused)]
        fresh = min(count - reused, self.total - self._next_unused)
        blocks.extend(range(self._next_unused, self._next_unused + fresh))
        self._next_unused += fresh
        while len(blocks) < count:
            block, _ = self._kept.popitem(last=False)
            self._named.remove(block)
            self.on_overwrite(block)
            blocks.append(block)
        for block in blocks:
            self._references[block] = 1
        return blocks

    def name(self, block: int) -> None:
        """Keep this held block's contents when its last holder lets go."""
        assert block in self._references, f"block {block} is free"  # noqa: S101
        self._named.add(block)

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each of these blocks, which are held or kept."""
        for block in blocks:
            count = self._references.get(block)
            if count is None:
                del self._kept[block]
                self._references[block] = 1
            else:
                self._references[block] = count + 1

    def release(self, blocks: list[int]) -> None:
        """One holder less for each; who was the last frees the block.

        From the end of the table: of a chain of kept blocks the last is overwritten first, for
        without those before it it would be of no use.
        """
        for block in reversed(blocks):
            count = self._references[block] - 1
            if count:
                self._references[block] = count
                continue
            del self._references[block]
            if block in self._named:
                self._kept[block] = None
            else:
                self._returned.append(block)

    def freed_by(self, tables: Iterable[list[int]]) -> int:
        """How many blocks would be free if all these tables let go."""
        held = Counter(block for table in tables for block in table)
        return sum(self._references[block] == count for block, count in held.items())

    def check(self, tables: Iterable[list[int]]) -> None:
        """Assert that exactly these tables hold blocks, and that free and held make the total."""
        held = Counter(block for table in tables for block in table)
        assert dict(held) == self._references, "references differ from the tables"  # noqa: S101
        returned, kept = set(self._returned), set(self._kept)
        assert len(self._returned) == len(returned), "a block is free twice"  # noqa: S101
        assert not held.keys() & (returned | kept), "a held block is free"  # noqa: S101
        assert not returned & kept, "a kept block may be overwritten untold"  # noqa: S101
        assert kept == self._named - held.keys(), "what is named and not held is kept"  # noqa: S101
        unused = self.total - self._next_unused
        assert len(held) + len(returned) + len(kept) + unused == self.total, "blocks are lost"  # noqa: S101
