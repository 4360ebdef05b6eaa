"""From a key to one 32-bit number, and from a key and an instance to a score.

Raw FNV-1a leaves sequential ids close together, which skews any ring built on it (8 instances and
160 virtual nodes: a standard deviation of 45 % of the mean). Its result is therefore finalised by
murmur3's mixer, and used in weighted rendezvous hashing instead of a ring: no virtual nodes, and a
new instance takes only the keys that it wins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import truediv
from struct import Struct

__all__ = ["Rendezvous", "affinity_hash", "fmix32", "fnv1a_32", "instance_hash"]

_MASK = 0xFFFF_FFFF
_ODD_DRAWS = 2.0 * (_MASK + 1)
_MIX_1, _MIX_2 = 0x85EB_CA6B, 0xC2B2_AE35
_FNV_OFFSET = 0x811C_9DC5
_FNV_PRIME = 0x0100_0193
INSTANCE_HASHES_KEPT = 4096
KEY_HASHES_KEPT = 16_384


def fnv1a_32(data: bytes) -> int:
    """FNV-1a, 32 bits (http://www.isthe.com/chongo/tech/comp/fnv/)."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


def fmix32(value: int) -> int:
    """The finaliser of MurmurHash3: every input bit flips every output bit half of the time."""
    value ^= value >> 16
    value = (value * _MIX_1) & _MASK
    value ^= value >> 13
    value = (value * _MIX_2) & _MASK
    return value ^ (value >> 16)


@lru_cache(maxsize=KEY_HASHES_KEPT)
def affinity_hash(user: str, method: str) -> int:
    """The number for the key `user|method`: it says where to go, never who somebody is.

    A lone surrogate in a user's name is hashed, not refused: this rule must never raise.
    """
    return fmix32(fnv1a_32(f"{user}|{method}".encode(errors="surrogatepass")))


@lru_cache(maxsize=INSTANCE_HASHES_KEPT)
def instance_hash(instance_id: str) -> int:
    """The number that stands for an instance in every draw."""
    return fmix32(fnv1a_32(instance_id.encode(errors="surrogatepass")))


class Rendezvous:
    """How much each of some instances wants a key; the highest score wins a share in proportion to its weight.

    Weighted rendezvous hashing after Schindelhauer and Schomaker (SPAA 2005): a score is
    `-weight / ln(u)` with `u` uniform in (0, 1), drawn from key and instance. All draws are made at
    once, as one Python integer with a lane of 64 bits for each instance, in which a product of two
    32-bit numbers has room: 64 instances cost what a few would one by one.
    """

    def __init__(self, ids: Sequence[str], weights: Sequence[float]) -> None:
        self._weights = [-weight for weight in weights]
        self._equal = len(set(weights)) <= 1
        self._unpack = Struct(f"<{len(ids)}Q").unpack
        self._ones = sum(1 << 64 * lane for lane in range(len(ids)))
        self._masks = _MASK * self._ones
        self._hashes = sum(instance_hash(name) << 64 * lane for lane, name in enumerate(ids))

    def scores(self, key: int) -> list[float]:
        """The instances' scores for a key, in their order; all above 0."""
        if self._equal:
            # The score rises with the draw, so that among equals the draw will do.
            return list(self._odd_draws(key))
        chances = [odd / _ODD_DRAWS for odd in self._odd_draws(key)]
        return list(map(truediv, self._weights, map(math.log, chances)))

    def _odd_draws(self, key: int) -> tuple[int, ...]:
        """`2 * fmix32(key ^ hash) + 1` of each: never 0, and evenly spread below 2^33."""
        masks = self._masks
        value = self._hashes ^ (key * self._ones)
        value ^= (value >> 16) & masks
        value = (value * _MIX_1) & masks
        value ^= (value >> 13) & masks
        value = (value * _MIX_2) & masks
        value ^= (value >> 16) & masks
        value = (value << 1) | self._ones
        return self._unpack(value.to_bytes(8 * len(self._weights), "little"))
