"""The hash and the scores that routing rests on."""

from __future__ import annotations

from router.policy.affinity import affinity_hash, fmix32, fnv1a_32, rendezvous_score


def test_fnv1a_known_values() -> None:
    """FNV-1a gives the values its authors publish."""
    assert fnv1a_32(b"") == 0x811C9DC5
    assert fnv1a_32(b"a") == 0xE40C292C
    assert fnv1a_32(b"foobar") == 0xBF9CF968


def test_fmix32_known_values() -> None:
    """murmur3's finaliser gives its known values and keeps zero."""
    assert fmix32(0) == 0
    assert fmix32(1) == 0x514E28B7


def test_lone_surrogate_is_hashed() -> None:
    """CASES 20: a user's name that no encoder takes still has a place to go."""
    assert affinity_hash("\ud83d", "Generate") == affinity_hash("\ud83d", "Generate")


def test_weight_scales_the_score() -> None:
    """A score is positive and proportional to the weight."""
    light = rendezvous_score(7, "a", 1.0)
    assert light > 0
    assert rendezvous_score(7, "a", 3.0) == 3 * light
