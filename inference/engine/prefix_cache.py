"""Prompts that begin alike are computed once: full KV blocks, found again by what they hold."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from inference.engine.block_pool import BlockPool
from inference.engine.sequence import Sequence

__all__ = ["PrefixCache"]

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Contents:
    """What a named block holds: its token ids (32 bits each), after the chain that `digest` ends."""

    digest: bytes
    ids: bytes


class PrefixCache:
    """Names full blocks by a chained hash of everything up to their end, and finds them again.

        digest 0 = H(salt)    digest i+1 = H(digest i, ids of block i)

    The salt is the tenant's: what one tenant has asked is never found, nor felt in the time to a
    first token, by another (CVE-2025-46570). A digest is not believed on a hit: the token ids are
    compared too.

    Only full blocks are named, and a sequence always computes its last known token itself, in a
    block of its own. So a shared block is never written to, and nothing is ever copied on a write.
    Of equal blocks that were computed at the same time the first is named and the others stay
    their sequences' own; no table ever changes but at its end.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._block_of: dict[bytes, int] = {}
        self._contents: dict[int, _Contents] = {}
        pool.on_overwrite = self._forget

    def find(self, sequence: Sequence) -> list[int]:
        """The blocks that hold the sequence's beginning already, all but its last token at most.

        They are held or kept; whoever wants them shares them before anything else is allocated.
        """
        blocks: list[int] = []
        count = (sequence.total - 1) // self._pool.block_size
        for digest, ids in self._chain(sequence, 0, count):
            block = self._block_of.get(digest)
            if block is None or self._contents[block].ids != ids:
                break
            blocks.append(block)
        return blocks

    def store(self, sequence: Sequence, computed_before: int) -> None:
        """Name the blocks that the sequence has filled since it had computed so many tokens."""
        size = self._pool.block_size
        first, end = computed_before // size, sequence.computed // size
        table = sequence.block_table
        for index, (digest, ids) in enumerate(self._chain(sequence, first, end), first):
            if digest not in self._block_of:
                block = table[index]
                self._block_of[digest] = block
                self._contents[block] = _Contents(digest, ids)
                self._pool.name(block)

    def check(self) -> None:
        """Assert that the two directories say the same."""
        found = {contents.digest: block for block, contents in self._contents.items()}
        assert found == self._block_of, "a block has two names, or a name two blocks"  # noqa: S101

    def _chain(self, sequence: Sequence, first: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        """Digest and ids of the sequence's blocks `first` to `end`, all of them full."""
        size, digests = self._pool.block_size, sequence.digests
        if not digests:
            digests.append(_digest(b"", sequence.salt.encode()))
        for index in range(first, end):
            ids = array("I", sequence.tokens(index * size, (index + 1) * size)).tobytes()
            # Tokens never change, so a digest is made once, however often a sequence begins anew.
            if index + 1 == len(digests):
                digests.append(_digest(digests[index], ids))
            yield digests[index + 1], ids

    def _forget(self, block: int) -> None:
        del self._block_of[self._contents.pop(block).digest]


def _digest(before: bytes, data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES, key=before).digest()
