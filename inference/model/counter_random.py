"""Random numbers as a pure function of (seed, choice, position).

Philox4x32-10: ten rounds of multiply and mix over a counter, under a key (Salmon, Moraes, Dror and
Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011). There is no state, so nothing is lost
with an instance, and a row draws the same number whatever else is in its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["philox4x32", "uniforms"]

Words = NDArray[np.uint64]

ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
LOW = np.uint64(0xFFFFFFFF)
WORD = np.uint64(32)
MANTISSA_BITS = 53


def philox4x32(counter: tuple[Words, ...], key: tuple[Words, ...]) -> tuple[Words, ...]:
    """Four random words for each counter of four words and key of two, held in 64-bit lanes."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # The product of two 32-bit words fits its lane: high and low half are one shift apart.
        left, right = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (right >> WORD) ^ c1 ^ k0,
            right & LOW,
            (left >> WORD) ^ c3 ^ k1,
            left & LOW,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return c0, c1, c2, c3


def uniforms(
    seeds: Sequence[int], choices: Sequence[int], positions: Sequence[int]
) -> NDArray[np.float64]:
    """One number from [0, 1) with 53 random bits for each (seed, choice, position).

    key = seed (low word, high word)      counter = (position, choice, 0, 0)
    """
    seed = np.array(seeds, dtype=np.uint64)
    zero = np.zeros_like(seed)
    counter = (np.array(positions, np.uint64), np.array(choices, np.uint64), zero, zero)
    high, low, _, _ = philox4x32(counter, (seed & LOW, seed >> WORD))
    bits = ((high << WORD) | low) >> np.uint64(64 - MANTISSA_BITS)
    return bits.astype(np.float64) / 2.0**MANTISSA_BITS
