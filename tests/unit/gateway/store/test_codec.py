"""Session writes as script arguments, and replies as sessions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.base import (
    KEEP_S,
    OWNER_SILENCE_S,
    LogEntry,
    SessionWrite,
    StreamWrite,
    UsageEvent,
)
from gateway.store.codec import commit_arguments, pack_ids, read_claimed, session_key, unpack_ids


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_survive_packing(ids: list[int]) -> None:
    """Packed ids come back, and the packing of a concatenation is the concatenation of packings."""
    assert unpack_ids(pack_ids(ids)) == tuple(ids)
    assert pack_ids(ids) + pack_ids(ids) == pack_ids([*ids, *ids])


def test_times_of_a_write() -> None:
    """Keys outlive the deadline; a session without a connection has no owner's slack."""
    attached = commit_arguments(SessionWrite("s", 1), 120)
    detached = commit_arguments(SessionWrite("s", 1, detached=True), 120)
    assert attached[2] == detached[2] == (120 + KEEP_S) * 1000
    assert attached[3] == (120 + OWNER_SILENCE_S) * 1000
    assert detached[3] == 120 * 1000


def test_arguments_are_countable() -> None:
    """Bills, entries and streams are preceded by their number, each with a fixed number of arguments."""
    write = SessionWrite(
        "s",
        1,
        entries=(LogEntry(1, b"x"),),
        streams=(StreamWrite("a"), StreamWrite("b")),
        bills=(UsageEvent("s/a", b"{}"),),
    )
    arguments = commit_arguments(write, 120)
    assert arguments[9] == 1
    assert arguments[12] == 1
    assert arguments[15] == 2
    assert len(arguments) == 16 + 2 * 7


def test_a_lone_surrogate_in_an_id_survives() -> None:
    """CASES 20: an id that no codec would take cannot break the commit of everybody's sessions."""
    arguments = commit_arguments(SessionWrite("s", 1, streams=(StreamWrite("\ud83d"),)), 120)
    raw = arguments[12]
    assert isinstance(raw, bytes)
    fields = [b"created", b"{}", b"last_seq", b"0", b"acked", b"0"]
    fields += [b"o:" + raw, b"{}", b"f:" + raw, b"0 0"]
    claimed = read_claimed("s", 2, fields, [], [raw, b""])
    assert list(claimed.streams) == ["\ud83d"]


def test_keys_carry_a_hash_tag() -> None:
    """All keys of a session are on one node of a cluster."""
    assert session_key("abc") == "seedance:{abc}"
