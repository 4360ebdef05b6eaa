"""Which instance takes a key."""

from __future__ import annotations

from collections import Counter
from statistics import mean, pstdev

import pytest

from mesh.membership import Instance, Load
from router.policy.affinity import affinity_hash
from router.policy.scoring import Outcome, RouteKey, Standing, Table, carried, choose_instance


def _instances(count: int, **fields: object) -> list[Instance]:
    return [
        Instance(id=f"inference-{i}", address=f"127.0.0.1:{i}", models=("m", "alias"), **fields)  # type: ignore[arg-type]
        for i in range(count)
    ]


def _owner(instances: list[Instance], user: str, **fields: object) -> str | None:
    choice = choose_instance(instances, RouteKey(user, "Generate", **fields))  # type: ignore[arg-type]
    return choice.instance.id if choice.instance else None


def test_sequential_users_spread_evenly() -> None:
    """CASES 72: 40,000 sequential ids over 8 instances: CV at most 5 %, maximum 1.1 of the mean."""
    instances = _instances(8)
    counts = Counter(_owner(instances, f"user-{i}") for i in range(40_000))
    assert len(counts) == 8
    assert pstdev(counts.values()) / mean(counts.values()) <= 0.05
    assert max(counts.values()) / mean(counts.values()) <= 1.1


def test_a_ninth_instance_takes_only_its_share() -> None:
    """CASES 72: from 8 to 9 instances at most 12 % of keys move, all of them to the new one."""
    eight, nine = _instances(8), _instances(9)
    moved = [
        _owner(nine, f"user-{i}")
        for i in range(10_000)
        if _owner(eight, f"user-{i}") != _owner(nine, f"user-{i}")
    ]
    assert len(moved) / 10_000 <= 0.12
    assert set(moved) == {"inference-8"}


def test_order_of_instances_does_not_matter() -> None:
    """CASES 70: two gateways with the same members decide alike."""
    instances = _instances(5)
    for i in range(200):
        assert _owner(instances, f"u{i}") == _owner(instances[::-1], f"u{i}")


def test_weights_share_in_proportion() -> None:
    """Twice the weight wins about twice the keys."""
    heavy, light = _instances(2)
    pair = [Instance(heavy.id, heavy.address, heavy.models, weight=2.0), light]
    counts = Counter(_owner(pair, f"user-{i}") for i in range(9_000))
    assert counts[heavy.id] / counts[light.id] == pytest.approx(2, rel=0.1)


def test_load_bound_passes_over_the_full_one() -> None:
    """CASES 68: keys of an instance far over its share go to the idle one."""
    busy, idle = _instances(2)
    pair = [
        Instance(busy.id, busy.address, busy.models, load=Load(running=16, waiting=100)),
        Instance(idle.id, idle.address, idle.models, load=Load()),
    ]
    assert {_owner(pair, f"u{i}") for i in range(100)} == {idle.id}


def test_little_work_never_breaks_affinity() -> None:
    """Three sequences of one user stay together: the bound begins above the floor."""
    owner = _owner(_instances(4), "ann")
    assert owner is not None
    loaded = [
        Instance(i.id, i.address, i.models, load=Load(running=3 if i.id == owner else 0))
        for i in _instances(4)
    ]
    assert _owner(loaded, "ann") == owner


def test_equal_load_leaves_everybody_in_choice() -> None:
    """With all at the mean nobody is over the bound, however high the load."""
    plain = _instances(4)
    loaded = [Instance(i.id, i.address, i.models, load=Load(running=500)) for i in plain]
    assert all(_owner(plain, f"u{i}") == _owner(loaded, f"u{i}") for i in range(200))


def test_unknown_load_is_usable() -> None:
    """CASES 78: without a report an instance keeps its keys."""
    plain = _instances(3)
    partly = [Instance(plain[0].id, plain[0].address, plain[0].models, load=Load(2)), *plain[1:]]
    assert all(_owner(plain, f"u{i}") == _owner(partly, f"u{i}") for i in range(200))


def test_draining_takes_nothing_new() -> None:
    """A draining instance is never named, and only its keys move."""
    plain = _instances(3)
    drained = [Instance(plain[0].id, plain[0].address, plain[0].models, draining=True), *plain[1:]]
    for i in range(200):
        before, after = _owner(plain, f"u{i}"), _owner(drained, f"u{i}")
        assert after != plain[0].id
        assert before in (plain[0].id, after)


def test_excluded_is_not_named() -> None:
    """An instance that just failed a stream is not offered again."""
    instances = _instances(2)
    first = _owner(instances, "ann")
    second = _owner(instances, "ann", exclude=frozenset({first}))
    assert second not in (None, first)
    assert _owner(instances, "ann", exclude=frozenset({first, second})) is None


def test_aliases_are_models_too() -> None:
    """A model is found by any of its names."""
    assert _owner(_instances(2), "ann", model="alias") == _owner(_instances(2), "ann", model="m")


@pytest.mark.parametrize(
    ("registered", "asked", "served"),
    [
        ("*", "high-perf", True),
        ("*", "standard", True),
        ("standard", "standard", True),
        ("standard", "", True),
        ("standard", "high-perf", False),
        ("high-perf", "standard", False),
    ],
)
def test_instance_class(registered: str, asked: str, served: bool) -> None:
    """A class is served by its own instances and by those that serve every class."""
    found = _owner(_instances(1, instance_class=registered), "ann", instance_class=asked)
    assert (found is not None) == served


def test_says_why_nobody() -> None:
    """An unknown model is told apart from one whose instances are not free."""
    instances = _instances(1, draining=True)
    unknown = choose_instance(instances, RouteKey("ann", "Generate", model="other"))
    busy = choose_instance(instances, RouteKey("ann", "Generate", model="m"))
    assert unknown.outcome is Outcome.MODEL_UNKNOWN
    assert busy.outcome is Outcome.NONE_FREE
    assert choose_instance([], RouteKey("ann", "Generate")).outcome is Outcome.MODEL_UNKNOWN


# ---------------------------------------------------------------- what they carry


def _standing(
    running: int | None, own: int = 0, own_reported: int = 0, weight: float = 1.0
) -> Standing:
    load = None if running is None else Load(running=running)
    return Standing(Instance("i", "h:1", ("m",), weight=weight, load=load), own, own_reported)


def test_load_is_ones_own_and_what_is_reported_of_others() -> None:
    """Since a report one's own streams are counted, and others' taken to have changed alike."""
    assert carried([_standing(10, own=4, own_reported=4)]) == [10]
    assert carried([_standing(10, own=9, own_reported=4)]) == [9 + 6 * 2]
    assert carried([_standing(9, own=1, own_reported=3)]) == [1 + 6 / 2]
    assert carried([_standing(4, own=9, own_reported=4)]) == [9]
    # Paused streams are one's own, and none of the engine's running ones.
    assert carried([_standing(0, own=7, own_reported=7)]) == [7]


def test_who_is_unknown_is_as_busy_as_the_others() -> None:
    """CASES 78: neither full nor empty; by weight; and with no report at all one's own streams count."""
    known, unknown = _standing(12, own=2, own_reported=2), _standing(None, own=1, weight=2.0)
    assert carried([known, unknown]) == [12, 21]
    assert carried([_standing(None, own=5), _standing(None)]) == [5, 0]


def _loaded(instances: list[Instance], *loads: float) -> Table:
    table = Table(instances)
    table.carry(loads)
    return table


def test_nobody_is_given_more_than_its_bound() -> None:
    """CASES 68: filled one by one, no instance ever has over 1.25 of the mean, whoever asks."""
    table = Table(_instances(8))
    counts: Counter[str] = Counter()
    for n in range(800):
        chosen = table.choose(affinity_hash("the only user", "Generate"))
        assert chosen is not None
        table.add(chosen.id)
        counts[chosen.id] += 1
        assert max(counts.values()) <= max(4, 1.25 * (n + 1) / 8 + 1)
    assert max(counts.values()) / mean(counts.values()) <= 1.25


def test_a_full_one_leaves_its_keys_to_the_next_in_their_order() -> None:
    """Keys of others do not move, and the same key always goes to the same second choice."""
    instances = _instances(4)
    even, skewed = _loaded(instances, 10, 10, 10, 10), _loaded(instances, 40, 10, 10, 10)
    for user in range(300):
        key = affinity_hash(f"u{user}", "Generate")
        home, found = even.choose(key), skewed.choose(key)
        assert home is not None
        assert found is not None
        if home.id != "inference-0":
            assert found == home
        else:
            assert found == even.choose(key, exclude={"inference-0"})


def test_the_longest_known_prefix_wins_below_the_bound() -> None:
    """Who has the prompt's beginning is chosen before whom affinity names, unless it is full."""
    instances = _instances(4)
    table = _loaded(instances, 10, 10, 10, 10)
    keys = [affinity_hash(f"u{n}", "Generate") for n in range(50)]
    for key in keys:
        longest = table.choose(key, [{"inference-2"}, {"inference-1", "inference-2"}])
        assert longest is not None
        assert longest.id == "inference-2"
        assert table.choose(key, [{"a stranger"}]) == table.choose(key)
    full = _loaded(instances, 10, 10, 40, 10)
    for key in keys:
        shorter = full.choose(key, [{"inference-2"}, {"inference-1", "inference-2"}])
        assert shorter is not None
        assert shorter.id == "inference-1"
        assert full.choose(key, [{"inference-2"}]) == full.choose(key)


@pytest.mark.parametrize(
    ("carried_at_home", "unknown_goes_home", "known_goes_home"),
    # A quarter of 1.25 times all, rounded up, is 44, 44 and 45.
    [(42, True, True), (43, False, True), (45, False, False)],
)
def test_the_last_place_is_kept_for_who_comes_back(
    carried_at_home: int, unknown_goes_home: bool, known_goes_home: bool
) -> None:
    """Below its bound by one, an instance takes a prompt that it knows, and no other."""
    instances, key = _instances(4), affinity_hash("ann", "Generate")
    home = Table(instances).choose(key)
    assert home is not None
    loads = [carried_at_home if instance == home else 32 for instance in instances]
    table = _loaded(instances, *loads)
    assert (table.choose(key) == home) is unknown_goes_home
    assert (table.choose(key, [{home.id}]) == home) is known_goes_home


def test_affinity_decides_among_those_who_know_as_much() -> None:
    """Users of one system prompt spread over all instances that have it."""
    table = _loaded(_instances(4), 10, 10, 10, 10)
    holders = [{"inference-1", "inference-3"}]
    chosen = Counter(
        found.id
        for n in range(400)
        if (found := table.choose(affinity_hash(f"u{n}", "Generate"), holders)) is not None
    )
    assert set(chosen) == holders[0]
    assert min(chosen.values()) > 150


def test_an_excluded_one_is_not_named_though_all_others_are_full() -> None:
    """Then affinity alone decides; with everybody excluded there is nobody."""
    table = _loaded(_instances(3), 0, 90, 90)
    for n in range(50):
        found = table.choose(affinity_hash(f"u{n}", "Generate"), exclude={"inference-0"})
        assert found is not None
        assert found.id != "inference-0"
    assert table.choose(1, exclude={f"inference-{n}" for n in range(3)}) is None
    assert Table([]).choose(1) is None


def test_canary_instances_take_canary_keys_only() -> None:
    """Other keys go there only when nobody else is left, and canary keys elsewhere without a canary."""
    old, new = _instances(2)
    new = Instance(new.id, new.address, new.models, canary=True)
    for n in range(50):
        assert _owner([old, new], f"u{n}") == old.id
        assert _owner([old, new], f"u{n}", canary=True) == new.id
    assert _owner([new], "ann") == new.id
    assert _owner([old], "ann", canary=True) == old.id


def test_one_that_lapsed_is_the_last_resort() -> None:
    """CASES 78: who holds no connections names it when there is nobody else, and never before."""
    known, lapsed = _instances(2)
    lapsed = Instance(lapsed.id, lapsed.address, lapsed.models, lapsed=True)
    assert {_owner([known, lapsed], f"u{n}") for n in range(50)} == {known.id}
    assert _owner([lapsed], "ann") == lapsed.id
