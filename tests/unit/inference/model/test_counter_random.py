"""Random numbers without state."""

from __future__ import annotations

import numpy as np
import pytest

from inference.model.counter_random import philox4x32, uniforms

# The known answers that the authors publish with their code (Random123, `kat_vectors`).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_it_is_philox(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    """The generator gives its authors' published answers."""
    lanes = tuple(np.array([word], dtype=np.uint64) for word in counter)
    keys = tuple(np.array([word], dtype=np.uint64) for word in key)
    assert tuple(int(word[0]) for word in philox4x32(lanes, keys)) == words


def test_a_number_depends_on_its_own_coordinates_alone() -> None:
    """The same (seed, choice, position) gives the same number in any batch."""
    seeds, choices, positions = [1, 2**63 - 1, 7], [0, 3, 1], [0, 5, 2**20]
    together = uniforms(seeds, choices, positions)
    for index in range(3):
        alone = uniforms([seeds[index]], [choices[index]], [positions[index]])
        assert alone[0] == together[index]


def test_each_coordinate_counts() -> None:
    """Another seed (in either half), choice or position gives another number."""
    found = uniforms([1, 2, 1 + 2**40, 1, 1], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1])
    assert len(set(found.tolist())) == 5


def test_numbers_are_spread_evenly() -> None:
    """Over seeds, and over positions, each tenth of [0, 1) gets a tenth, within five deviations."""
    count = 100_000
    run = range(count)
    for numbers in (
        uniforms(run, [0] * count, [3] * count),
        uniforms([9] * count, [0] * count, run),
    ):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        histogram, _ = np.histogram(numbers, bins=10, range=(0, 1))
        deviation = (count * 0.1 * 0.9) ** 0.5
        assert np.abs(histogram - count / 10).max() < 5 * deviation
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / count**0.5
