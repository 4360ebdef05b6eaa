"""Which blocks are found again, and by whom."""

from __future__ import annotations

import pytest

from inference.engine.block_pool import BlockPool
from inference.engine.offload import ColdTier
from inference.engine.prefix_cache import PrefixCache
from inference.engine.sequence import Sequence

SIZE = 4


def _sequence(prompt: list[int], salt: str = "a") -> Sequence:
    return Sequence(id=1, prompt_ids=prompt, answer_ids=[], arrival=0.0, salt=salt)


def _filled(
    pool: BlockPool, cache: PrefixCache, prompt: list[int], salt: str = "a"
) -> tuple[Sequence, list[int]]:
    sequence = _sequence(prompt, salt)
    sequence.block_table = pool.allocate(pool.blocks_for(len(prompt))) or []
    sequence.computed = len(prompt)
    cache.store(sequence, 0)
    return sequence, list(sequence.block_table)


def _made(
    total: int = 10, *, window: int | None = None, public: tuple[int, ...] = ()
) -> tuple[BlockPool, PrefixCache]:
    pool = BlockPool(total, SIZE, window=window)
    return pool, PrefixCache(pool, ColdTier(0), public)


def _found(pool: BlockPool, cache: PrefixCache, sequence: Sequence) -> list[int]:
    """The table that it would begin with."""
    table = cache.take(sequence)
    pool.release(table[pool.out_of_window(len(table) * SIZE) :])
    return table


def test_full_blocks_of_a_common_beginning_are_found() -> None:
    """Two of two and a half blocks are shared, up to where the prompts part."""
    pool, cache = _made()
    _, blocks = _filled(pool, cache, list(range(10)))
    assert _found(pool, cache, _sequence(list(range(10)))) == blocks[:2]
    assert _found(pool, cache, _sequence([*range(5), 99, 99, 99, 99])) == blocks[:1]
    assert _found(pool, cache, _sequence([99, *range(1, 10)])) == []
    cache.check()


def test_the_same_tokens_elsewhere_are_not_the_same_block() -> None:
    """A block's name depends on all that comes before it."""
    pool, cache = _made()
    _filled(pool, cache, [1] * 8)
    assert len(_found(pool, cache, _sequence([1] * 5))) == 1
    assert len(_found(pool, cache, _sequence([2] * 4 + [1] * 5))) == 0


def test_a_whole_prompt_leaves_its_last_token_to_compute() -> None:
    """The last token's logits choose the first of the answer: its block is computed anew."""
    pool, cache = _made()
    _, blocks = _filled(pool, cache, list(range(8)))
    assert _found(pool, cache, _sequence(list(range(8)))) == blocks[:1]
    assert _found(pool, cache, _sequence(list(range(9)))) == blocks


def test_a_tenant_never_finds_anothers_blocks() -> None:
    """CASES 80: the salt is part of every name."""
    pool, cache = _made()
    _filled(pool, cache, list(range(8)), salt="a")
    assert _found(pool, cache, _sequence(list(range(9)), salt="b")) == []
    assert len(_found(pool, cache, _sequence(list(range(9)), salt="a"))) == 2


def test_a_digest_is_not_believed_without_its_tokens() -> None:
    """Were two texts to have one digest, the second would find nothing rather than the first's."""
    pool, cache = _made()
    _filled(pool, cache, list(range(8)))
    other = _sequence([7] * 9)
    other.digests = list(_filled(pool, cache, list(range(8)))[0].digests)
    assert _found(pool, cache, other) == []


def test_answers_are_found_too() -> None:
    """The next turn of a conversation begins with prompt and answer of this one."""
    pool, cache = _made()
    sequence = _sequence([1, 2, 3])
    sequence.answer_ids += [4, 5, 6, 7, 8]
    sequence.block_table = pool.allocate(2) or []
    sequence.computed = 8
    cache.store(sequence, 0)
    assert len(_found(pool, cache, _sequence(list(range(1, 12))))) == 2


def test_the_oldest_kept_blocks_are_overwritten_first_and_found_no_more() -> None:
    """Least recently used first, and of one chain its end before its beginning."""
    for overwritten, left in ((1, 1), (2, 0)):
        pool, cache = _made(total=4)
        for base in (0, 50):
            sequence, _ = _filled(pool, cache, list(range(base, base + 8)))
            pool.release(sequence.block_table)
        assert (pool.free, pool.kept) == (4, 4)
        assert pool.allocate(overwritten) is not None
        assert len(_found(pool, cache, _sequence(list(range(9))))) == left
        assert len(_found(pool, cache, _sequence(list(range(50, 59))))) == 2
        cache.check()


def test_of_equal_blocks_the_first_is_named() -> None:
    """Two that computed the same at once keep their own blocks; others find the first's."""
    pool, cache = _made()
    _, first = _filled(pool, cache, [1] * 4)
    second, _ = _filled(pool, cache, [1] * 4)
    assert _found(pool, cache, _sequence([1] * 5)) == first
    pool.release(second.block_table)
    assert pool.kept == 0
    cache.check()


def test_in_a_window_the_last_blocks_are_enough() -> None:
    """A sequence goes on where one window's blocks are there, though earlier ones are overwritten."""
    pool, cache = _made(total=6, window=7)
    _, blocks = _filled(pool, cache, list(range(20)))
    # At 20 computed tokens those from 14 on are read: blocks 3 and 4 of five.
    pool.release(blocks[:3])
    assert pool.allocate(4) is not None
    assert _found(pool, cache, _sequence(list(range(25)))) == [0, 0, 0, *blocks[3:]]
    # Block 4 is missing for one that parts before its end, and block 2 for one that starts at 16.
    assert _found(pool, cache, _sequence([*range(18), 99, 99, 99])) == []
    cache.check()


def test_in_a_window_the_longest_beginning_that_is_whole_is_taken() -> None:
    """A gap is passed over once as many blocks as the window reads follow it."""
    pool, cache = _made(total=12, window=5)
    _, blocks = _filled(pool, cache, list(range(24)))
    pool.release(blocks[2:3])
    assert pool.allocate(7) is not None  # block 2 is overwritten
    assert _found(pool, cache, _sequence(list(range(30)))) == [0] * 5 + blocks[5:]
    assert _found(pool, cache, _sequence(list(range(17)))) == [0] * 3 + blocks[3:4]
    assert _found(pool, cache, _sequence(list(range(13)))) == [0, *blocks[1:2]]


def test_a_public_beginning_is_shared_and_nothing_after_it() -> None:
    """CASES 80: blocks within the declared prefix are everybody's, the next one is its tenant's."""
    pool, cache = _made(public=tuple(range(10)))
    _, blocks = _filled(pool, cache, list(range(16)), salt="a")
    assert _found(pool, cache, _sequence(list(range(17)), salt="a")) == blocks
    assert _found(pool, cache, _sequence(list(range(17)), salt="b")) == blocks[:2]
    # The prefix ends inside the third block: that one is not public, whoever asks.
    assert _found(pool, cache, _sequence(list(range(13)), salt="b")) == blocks[:2]


def test_the_tokens_of_a_public_prefix_elsewhere_are_not_public() -> None:
    """Public is the beginning of a prompt, not a text that occurs in it."""
    pool, cache = _made(public=tuple(range(8)))
    _filled(pool, cache, [*range(4, 8), *range(8)], salt="a")
    assert _found(pool, cache, _sequence([*range(4, 8), *range(9)], salt="b")) == []


def test_who_strays_from_a_public_prefix_shares_up_to_there() -> None:
    """A prompt that begins like the prefix and parts from it shares the blocks before."""
    pool, cache = _made(public=tuple(range(12)))
    _, blocks = _filled(pool, cache, [*range(4), 99, 99, 99, 99], salt="a")
    assert _found(pool, cache, _sequence([*range(12), 1], salt="b")) == blocks[:1]
    assert _found(pool, cache, _sequence([*range(4), 99, 99, 99, 99, 1], salt="b")) == blocks[:1]


def test_marks_live_as_long_as_the_blocks_where_they_end() -> None:
    """A prompt's marks are told once its tokens are computed, until their blocks are overwritten."""
    pool, cache = _made(6)
    sequence = _sequence(list(range(16)))
    sequence.marks = (7, 8, 9)
    sequence.block_table = pool.allocate(4) or []
    sequence.computed = 9
    cache.store(sequence, 0)
    assert cache.marks() == [7, 8]
    sequence.computed = 16
    cache.store(sequence, 9)
    assert cache.marks() == [7, 8, 9]
    pool.release(sequence.block_table)
    pool.allocate(4)  # two never used, and the two that end the chain
    assert cache.marks() == [7, 8]
    pool.allocate(2)
    assert cache.marks() == []


def test_marks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than fit the oldest are not told any more."""
    monkeypatch.setattr("inference.engine.prefix_cache.MARKS_MAX", 2)
    pool, cache = _made()
    for n in range(3):
        sequence = _sequence([n] * SIZE * 2)
        sequence.marks = (n,)
        sequence.block_table = pool.allocate(2) or []
        sequence.computed = SIZE * 2
        cache.store(sequence, 0)
    assert cache.marks() == [1, 2]
