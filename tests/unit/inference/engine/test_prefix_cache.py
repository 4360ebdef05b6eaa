"""Which blocks are found again, and by whom."""

from __future__ import annotations

from inference.engine.block_pool import BlockPool
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


def _made(total: int = 10) -> tuple[BlockPool, PrefixCache]:
    pool = BlockPool(total, SIZE)
    return pool, PrefixCache(pool)


def test_full_blocks_of_a_common_beginning_are_found() -> None:
    """Two of two and a half blocks are shared, up to where the prompts part."""
    pool, cache = _made()
    _, blocks = _filled(pool, cache, list(range(10)))
    assert cache.find(_sequence(list(range(10)))) == blocks[:2]
    assert cache.find(_sequence([*range(5), 99, 99, 99, 99])) == blocks[:1]
    assert cache.find(_sequence([99, *range(1, 10)])) == []
    cache.check()


def test_the_same_tokens_elsewhere_are_not_the_same_block() -> None:
    """A block's name depends on all that comes before it."""
    pool, cache = _made()
    _filled(pool, cache, [1] * 8)
    assert len(cache.find(_sequence([1] * 5))) == 1
    assert len(cache.find(_sequence([2] * 4 + [1] * 5))) == 0


def test_a_whole_prompt_leaves_its_last_token_to_compute() -> None:
    """The last token's logits choose the first of the answer: its block is computed anew."""
    pool, cache = _made()
    _, blocks = _filled(pool, cache, list(range(8)))
    assert cache.find(_sequence(list(range(8)))) == blocks[:1]
    assert cache.find(_sequence(list(range(9)))) == blocks


def test_a_tenant_never_finds_anothers_blocks() -> None:
    """CASES 80: the salt is part of every name."""
    pool, cache = _made()
    _filled(pool, cache, list(range(8)), salt="a")
    assert cache.find(_sequence(list(range(9)), salt="b")) == []
    assert len(cache.find(_sequence(list(range(9)), salt="a"))) == 2


def test_a_digest_is_not_believed_without_its_tokens() -> None:
    """Were two texts to have one digest, the second would find nothing rather than the first's."""
    pool, cache = _made()
    _filled(pool, cache, list(range(8)))
    other = _sequence([7] * 9)
    other.digests = list(_filled(pool, cache, list(range(8)))[0].digests)
    assert cache.find(other) == []


def test_answers_are_found_too() -> None:
    """The next turn of a conversation begins with prompt and answer of this one."""
    pool, cache = _made()
    sequence = _sequence([1, 2, 3])
    sequence.answer_ids += [4, 5, 6, 7, 8]
    sequence.block_table = pool.allocate(2) or []
    sequence.computed = 8
    cache.store(sequence, 0)
    assert len(cache.find(_sequence(list(range(1, 12))))) == 2


def test_the_oldest_kept_blocks_are_overwritten_first_and_found_no_more() -> None:
    """Least recently used first, and of one chain its end before its beginning."""
    pool, cache = _made(total=4)
    for base in (0, 50):
        sequence, _ = _filled(pool, cache, list(range(base, base + 8)))
        pool.release(sequence.block_table)
    assert (pool.free, pool.kept) == (4, 4)
    assert pool.allocate(1) is not None
    assert len(cache.find(_sequence(list(range(9))))) == 1
    assert len(cache.find(_sequence(list(range(50, 59))))) == 2
    assert pool.allocate(1) is not None
    assert cache.find(_sequence(list(range(9)))) == []
    cache.check()


def test_of_equal_blocks_the_first_is_named() -> None:
    """Two that computed the same at once keep their own blocks; others find the first's."""
    pool, cache = _made()
    _, first = _filled(pool, cache, [1] * 4)
    second, _ = _filled(pool, cache, [1] * 4)
    assert cache.find(_sequence([1] * 5)) == first
    pool.release(second.block_table)
    assert pool.kept == 0
    cache.check()
