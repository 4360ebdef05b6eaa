"""How the store's keys are named, with one partition and with several."""

from __future__ import annotations

import pytest

from mesh.store import CLUSTER_PARTITIONS, Partitions, committed_key, partitions_of
from mesh.store_link import StoreMisfitError, _keys_of


def _tag(key: str) -> str:
    return key.partition("{")[2].partition("}")[0]


def test_an_undivided_store_has_the_names_that_it_always_had() -> None:
    """A release that knows no partitions reads the same keys."""
    undivided = Partitions()
    assert undivided.session_key("abc") == "seedance:{abc}"
    assert undivided.usage_stream(0) == "seedance:usage"
    assert undivided.mark_key(0) == "seedance:generation"
    assert committed_key("g") == "{seedance:usage}:committed:g"


def test_the_keys_of_a_partition_share_a_hash_tag() -> None:
    """A session and the stream that its bills go to are on one node, and no name is another's."""
    divided = Partitions(8)
    for session in ("usage", "generation", "abc", *map(str, range(100))):
        partition = divided.of(session)
        keys = [divided.session_key(session), divided.usage_stream(partition)]
        keys.append(divided.mark_key(partition))
        assert {_tag(key) for key in keys} == {str(partition)}
        assert len(set(keys)) == 3


def test_sessions_are_spread() -> None:
    """No partition has much more than its share."""
    divided = Partitions(CLUSTER_PARTITIONS)
    counts = [0] * CLUSTER_PARTITIONS
    for n in range(16_000):
        counts[divided.of(f"session-{n}")] += 1
    assert 800 < min(counts) <= max(counts) < 1200


@pytest.mark.parametrize(
    ("url", "asked", "count"),
    [
        ("redis://h", 0, 1),
        ("redis://h", 4, 4),
        ("redis+cluster://h", 0, CLUSTER_PARTITIONS),
        ("rediss+cluster://h", 64, 64),
    ],
)
def test_a_store_is_divided_as_its_kind_needs(url: str, asked: int, count: int) -> None:
    """Nobody has to name a number; who does is heard."""
    assert partitions_of(url, asked).count == count


def test_a_cluster_is_not_one_partition() -> None:
    """A session's script would touch two slots: said before anything is asked of the store."""
    with pytest.raises(ValueError, match="more than one partition"):
        partitions_of("redis+cluster://h", 1)


def test_another_number_of_partitions_is_refused() -> None:
    """The number is the data's: with another one every session would be looked for elsewhere."""
    Partitions(4).agreed([None, b"4", b""])
    with pytest.raises(StoreMisfitError, match="--store-partitions 4"):
        Partitions(8).agreed([None, b"4", b""])


def test_a_command_without_a_key_goes_with_its_neighbour() -> None:
    """The time is asked of the node that was asked before, the first of the one that follows."""
    commands = [("INFO", "server"), ("GET", "a"), ("TIME",), ("EVALSHA", "f", 1, "b"), ("TIME",)]
    assert _keys_of(commands) == ["a", "a", "a", "b", "b"]
    assert _keys_of([("XREADGROUP", "GROUP", "g", "n", "STREAMS", "s", ">")]) == ["s"]
