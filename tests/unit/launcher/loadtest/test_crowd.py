"""Whose the connections of a run are."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from launcher.loadtest.crowd import _everybody
from launcher.loadtest.load import Load, target_of


def test_connections_are_spread_over_keys_and_users() -> None:
    """By Zipf's law: the first key has twice the second's connections; every user is somebody's."""
    target = target_of("ws://h:1", keys=("a", "b", "c"))
    crowd = _everybody(target, Load(connections=6000, users=50, zipf=1.0), random.Random(1))
    keys = Counter(who.key for who in crowd)
    assert keys["a"] / keys["b"] == pytest.approx(2, rel=0.15)
    assert keys["a"] / keys["c"] == pytest.approx(3, rel=0.15)
    assert len({who.user for who in crowd}) == 50


def test_slow_readers_are_evenly_among_them() -> None:
    """As many as asked for, wherever a share of the connections is cut or looked at."""
    load = Load(connections=100, slow_share=0.1)
    crowd = _everybody(target_of("ws://h:1"), load, random.Random(1))
    assert sum(who.slow for who in crowd) == 10
    assert sum(who.slow for who in crowd[:50]) == 5


def test_a_run_can_be_repeated() -> None:
    """The same seed draws the same crowd; without keys nobody shows one."""
    load = Load(connections=50)
    one, two = (_everybody(target_of("ws://h:1"), load, random.Random(7)) for _ in range(2))
    assert one == two
    assert {who.key for who in one} == {""}
