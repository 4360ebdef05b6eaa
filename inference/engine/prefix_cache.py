"""Prompts that begin alike are computed once: full KV blocks, found again by what they hold."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate

from inference.engine.block_pool import BlockPool
from inference.engine.offload import ColdTier
from inference.engine.sequence import Sequence

__all__ = ["PrefixCache"]

DIGEST_BYTES = 16
# What is told of the cache: a megabyte of prompts' text, the newest.
MARKS_MAX = 2048


@dataclass(frozen=True, slots=True)
class _Contents:
    """What a named block holds: its token ids (32 bits each), after the chain that `digest` ends."""

    digest: bytes
    ids: bytes


class PrefixCache:
    """Names full blocks by a chained hash of everything up to their end, and finds them again.

        digest 0 = nothing    digest i+1 = H(digest i, salt and ids of block i)

    The salt is the tenant's: what one tenant has asked is never found, nor felt in the time to a
    first token, by another (CVE-2025-46570). Blocks that hold nothing but the beginning of
    `public_prefix`, which the operator has declared no secret, have no salt: all tenants share
    them. A digest is not believed on a hit: the token ids are compared too.

    Only full blocks are named, and a sequence always computes its last known token itself, in a
    block of its own. So a shared block is never written to, and nothing is ever copied on a write.
    Of equal blocks that were computed at the same time the first is named and the others stay
    their sequences' own.

    In a model with a sliding window a sequence may go on from any beginning of which the last
    window's blocks are there, whatever became of earlier ones. What is overwritten goes to the CPU
    tier, and is loaded from there when it is asked for again.
    """

    def __init__(
        self, pool: BlockPool, tier: ColdTier, public_prefix: tuple[int, ...] = ()
    ) -> None:
        self._pool = pool
        self._tier = tier
        self._block_of: dict[bytes, int] = {}
        self._contents: dict[int, _Contents] = {}
        self._mark_ends: dict[int, bytes] = {}  # a mark, and the block where it ends; newest last
        self._public = frozenset(_public_digests(public_prefix, pool.block_size))
        pool.on_overwrite = self._overwritten

    def take(self, sequence: Sequence, *, cold: bool = True) -> list[int]:
        """A table of the blocks that hold the sequence's beginning, all but its last token at most.

        They have one holder more, but for those that left the window, which are 0. With `cold` they
        are loaded from the CPU tier where they are not here, if blocks are free to load them into.
        """
        dropped, found = self._find(sequence, cold=cold)
        here = [self._block_of[c.digest] for c in found if c.digest in self._block_of]
        # Shared first, so that nobody takes them while room is made for the others.
        self._pool.share(here)
        if len(found) - len(here) > self._pool.free:
            self._pool.release(here)
            return self.take(sequence, cold=False)
        self._load([c for c in found if c.digest not in self._block_of])
        return [0] * dropped + [self._block_of[c.digest] for c in found]

    def store(self, sequence: Sequence, computed_before: int) -> None:
        """Name the blocks that the sequence has filled since it had computed so many tokens."""
        size = self._pool.block_size
        first, end = computed_before // size, sequence.computed // size
        table = sequence.block_table
        for index, contents in enumerate(self._chain(sequence, first, end), first):
            if contents.digest not in self._block_of:
                self._name(table[index], contents)
        if first < end and first * size < len(sequence.prompt_ids):
            self._mark(sequence, first, end)

    def marks(self) -> list[int]:
        """Marks of the prompts' beginnings that are here; any thread may ask."""
        return [mark for mark, end in self._mark_ends.copy().items() if end in self._block_of]

    def check(self) -> None:
        """Assert that the two directories say the same."""
        found = {contents.digest: block for block, contents in self._contents.items()}
        assert found == self._block_of, "a block has two names, or a name two blocks"  # noqa: S101

    def _find(self, sequence: Sequence, *, cold: bool) -> tuple[int, list[_Contents]]:
        """Of the longest beginning to go on from: how many blocks left the window, and the others."""
        pool = self._pool
        chain: list[_Contents] = []
        unbroken_from = end = 0
        count = (sequence.total - 1) // pool.block_size
        for number, contents in enumerate(self._chain(sequence, 0, count), 1):
            chain.append(contents)
            if not self._has(contents, cold=cold):
                unbroken_from = number
                if pool.window is None:
                    break
            elif unbroken_from <= pool.out_of_window(number * pool.block_size):
                end = number
        dropped = pool.out_of_window(end * pool.block_size)
        return dropped, chain[dropped:end]

    def _mark(self, sequence: Sequence, first: int, end: int) -> None:
        """Note the marks whose blocks were filled, were text and tokens spread evenly."""
        step = len(sequence.prompt_ids) / (len(sequence.marks) + 1)
        for number, mark in enumerate(sequence.marks, 1):
            if first < (blocks := int(number * step) // self._pool.block_size) <= end:
                self._mark_ends.pop(mark, None)
                self._mark_ends[mark] = sequence.digests[blocks]
                if len(self._mark_ends) > MARKS_MAX:
                    del self._mark_ends[next(iter(self._mark_ends))]

    def _has(self, contents: _Contents, *, cold: bool) -> bool:
        block = self._block_of.get(contents.digest)
        if block is None:
            return cold and contents in self._tier
        return self._contents[block] == contents

    def _load(self, cold: list[_Contents]) -> None:
        # Out of the tier first, so that what these overwrite is not saved over them.
        slots = [self._tier.take(contents) for contents in cold]
        blocks = self._pool.allocate(len(cold)) or []
        for contents, slot, block in zip(cold, slots, blocks, strict=True):
            self._tier.load(slot, block)
            self._name(block, contents)

    def _name(self, block: int, contents: _Contents) -> None:
        self._block_of[contents.digest] = block
        self._contents[block] = contents
        self._pool.name(block)

    def _overwritten(self, block: int) -> None:
        contents = self._contents.pop(block)
        del self._block_of[contents.digest]
        self._tier.save(contents, block)

    def _chain(self, sequence: Sequence, first: int, end: int) -> Iterator[_Contents]:
        """What the sequence's blocks `first` to `end` hold, all of them full."""
        size, digests = self._pool.block_size, sequence.digests
        if not digests:
            digests.append(b"")
        for index in range(first, end):
            ids = _packed(sequence.tokens(index * size, (index + 1) * size))
            # Tokens never change, so a digest is made once, however often a sequence begins anew.
            if index + 1 == len(digests):
                digests.append(self._digest(digests[index], ids, sequence.salt))
            yield _Contents(digests[index + 1], ids)

    def _digest(self, before: bytes, ids: bytes, salt: str) -> bytes:
        public = _hash(before, ids)
        return public if public in self._public else _hash(before, salt.encode() + ids)


def _public_digests(ids: tuple[int, ...], size: int) -> Iterator[bytes]:
    blocks = (_packed(ids[i : i + size]) for i in range(0, len(ids) - size + 1, size))
    return accumulate(blocks, _hash, initial=b"")


def _packed(ids: list[int] | tuple[int, ...]) -> bytes:
    return array("I", ids).tobytes()


def _hash(before: bytes, data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES, key=before).digest()
