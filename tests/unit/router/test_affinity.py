"""The hash and the scores that routing rests on."""

from __future__ import annotations

from router.policy.affinity import Rendezvous, affinity_hash, fmix32, fnv1a_32, instance_hash


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


def test_all_draws_at_once_are_the_draws_one_by_one() -> None:
    """The lanes of one long integer do not touch each other: equal weights order by `fmix32`."""
    ids = [f"inference-{n}" for n in range(65)]
    scores = Rendezvous(ids, [1.0] * 65)
    for key in (0, 1, 0x1234_5678, 0xFFFF_FFFF):
        assert scores.scores(key) == [2 * fmix32(key ^ instance_hash(i)) + 1 for i in ids]


def test_weight_scales_the_score() -> None:
    """With unequal weights a score is positive and proportional to the weight."""
    light, heavy = Rendezvous(["a", "a"], [1.0, 3.0]).scores(7)
    assert light > 0
    assert heavy == 3 * light


def test_equal_weights_decide_as_weighed_ones() -> None:
    """The short cut for equal weights orders instances as the formula does."""
    ids = [f"inference-{n}" for n in range(9)]
    equal, weighed = Rendezvous(ids, [1.0] * 9), Rendezvous([*ids, "z"], [1.0] * 9 + [1e-9])
    for key in range(500):
        one, other = equal.scores(key), weighed.scores(key)[:9]
        assert one.index(max(one)) == other.index(max(other))
