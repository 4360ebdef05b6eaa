"""What the CPU tier remembers, and in which order it copies."""

from __future__ import annotations

from inference.engine.offload import ColdTier
from inference.engine.plan import BlockCopy


def _saved(block: int, slot: int) -> BlockCopy:
    return BlockCopy(block, slot, save=True)


def _loaded(block: int, slot: int) -> BlockCopy:
    return BlockCopy(block, slot, save=False)


def test_the_least_recently_saved_gives_way() -> None:
    """Capacity is a bound; who is saved again becomes the youngest without another copy."""
    tier = ColdTier(2)
    for block, contents in enumerate("aba"):
        tier.save(contents, block)
    assert tier.take_copies() == [_saved(0, 1), _saved(1, 0)]
    tier.save("c", 7)
    assert ("a" in tier, "b" in tier, "c" in tier) == (True, False, True)
    assert tier.take_copies() == [_saved(7, 0)]
    tier.check()


def test_what_is_taken_is_not_overwritten_before_it_is_loaded() -> None:
    """Room for what is loaded may be made by saving others: never into a slot that is still read."""
    tier = ColdTier(1)
    tier.save("a", 3)
    slot = tier.take("a")
    tier.save("b", 4)  # nowhere to go: it is lost
    assert "b" not in tier
    tier.load(slot, 4)
    tier.save("c", 5)
    assert tier.take_copies() == [_saved(3, 0), _loaded(4, 0), _saved(5, 0)]
    tier.check()


def test_without_slots_nothing_is_kept() -> None:
    """Off is a tier of size 0."""
    tier = ColdTier(0)
    tier.save("a", 1)
    assert "a" not in tier
    assert tier.take_copies() == []
    tier.check()
