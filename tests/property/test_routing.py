"""The routing rule holds whatever the instances, their weights and their loads are."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mesh.membership import Instance
from router.policy.prefixes import PrefixDirectory
from router.policy.scoring import LOAD_BOUND, LOAD_FLOOR_SEQUENCES, Table

WEIGHTS = st.floats(0.01, 100)
KEYS = st.integers(0, 2**32 - 1)
MEMBERS = st.lists(st.tuples(WEIGHTS, st.integers(0, 500)), min_size=1, max_size=12)
MARKS = st.frozensets(st.integers(0, 9), max_size=6)


def _table(members: list[tuple[float, int]]) -> Table:
    table = Table(Instance(f"i{n:02}", "h:1", ("m",), weight=w) for n, (w, _) in enumerate(members))
    table.carry([carried for _, carried in members])
    return table


@given(MEMBERS, KEYS, st.lists(st.sets(st.integers(0, 11), min_size=1), max_size=3))
def test_the_chosen_one_is_below_its_bound(
    members: list[tuple[float, int]], key: int, holders: list[set[int]]
) -> None:
    """There is always somebody below 1.25 of its share, and nobody else is named."""
    chosen = _table(members).choose(key, [{f"i{n:02}" for n in ids} for ids in holders])
    assert chosen is not None
    weight, carried = members[int(chosen.id[1:])]
    share = weight / sum(w for w, _ in members) * (1 + sum(c for _, c in members))
    assert carried < max(LOAD_FLOOR_SEQUENCES, math.ceil(LOAD_BOUND * share * (1 + 1e-9)))


@given(MEMBERS, KEYS)
def test_the_order_of_members_is_nothing(members: list[tuple[float, int]], key: int) -> None:
    """CASES 70: whoever has the same reports decides alike, in whatever order they came."""
    table = _table(members)
    mirrored = Table(table.instances[::-1])
    mirrored.carry([carried for _, carried in members])
    assert table.choose(key) == mirrored.choose(key)


@given(st.lists(WEIGHTS, min_size=1, max_size=12), WEIGHTS, st.lists(KEYS, max_size=20))
def test_a_new_instance_moves_keys_to_itself_alone(
    weights: list[float], added: float, keys: list[int]
) -> None:
    """Whatever it weighs: no key moves between those who were there."""
    # One weight apart from all others, so that both tables use the same formula.
    before = _table([(w, 0) for w in [*weights, 1.23456]])
    after = _table([(w, 0) for w in [*weights, 1.23456, added]])
    newest = after.instances[-1].id
    for key in keys:
        chosen = after.choose(key)
        assert chosen is not None
        assert chosen.id == newest or chosen == before.choose(key)


@given(st.lists(st.tuples(st.integers(0, 3), MARKS), max_size=20), st.lists(st.integers(0, 9)))
def test_the_directory_is_what_was_reported_last(
    reports: list[tuple[int, frozenset[int]]], asked: list[int]
) -> None:
    """However reports follow each other, a mark's holders are those whose latest has it."""
    directory = PrefixDirectory()
    latest: dict[str, frozenset[int]] = {}
    for number, marks in reports:
        directory.report(f"i{number}", marks)
        latest[f"i{number}"] = marks
    holding = [{i for i, marks in latest.items() if mark in marks} for mark in reversed(asked)]
    assert [set(ids) for ids in directory.holders(asked)] == [ids for ids in holding if ids]
