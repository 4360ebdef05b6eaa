"""The CPU tier: contents of blocks that were overwritten where the model computes, kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from inference.engine.plan import BlockCopy

__all__ = ["ColdTier"]


class ColdTier:
    """Which contents lie in which of `slots` slots; the least recently saved goes first.

    It decides and remembers; the copying is the runner's, in the order in which it was decided
    (`take_copies`). Contents that are taken leave their slot: they are found where the model
    computes from then on, and saved again when they are overwritten there.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._slot_of: OrderedDict[Hashable, int] = OrderedDict()
        self._free = list(range(slots))
        self._copies: list[BlockCopy] = []

    def __contains__(self, contents: Hashable) -> bool:
        return contents in self._slot_of

    def save(self, contents: Hashable, block: int) -> None:
        """Keep the contents of a block that is about to be overwritten."""
        if contents in self._slot_of:
            self._slot_of.move_to_end(contents)
        elif self.slots:
            # Every slot may be on its way out of the tier at once.
            if not self._free and not self._slot_of:
                return
            slot = self._free.pop() if self._free else self._slot_of.popitem(last=False)[1]
            self._slot_of[contents] = slot
            self._copies.append(BlockCopy(block, slot, save=True))

    def take(self, contents: Hashable) -> int:
        """The slot of contents that are about to be loaded; nothing is saved there until they are."""
        return self._slot_of.pop(contents)

    def load(self, slot: int, block: int) -> None:
        """Bring what was taken from the slot into a block."""
        self._free.append(slot)
        self._copies.append(BlockCopy(block, slot, save=False))

    def take_copies(self) -> list[BlockCopy]:
        """What is to be copied, since the last time."""
        copies, self._copies = self._copies, []
        return copies

    def check(self) -> None:
        """Assert that every slot is free or has one tenant."""
        assert sorted([*self._free, *self._slot_of.values()]) == list(range(self.slots))  # noqa: S101
