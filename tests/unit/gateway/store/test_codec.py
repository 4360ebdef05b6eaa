"""Session writes as script arguments, and replies as sessions."""

from __future__ import annotations

import pytest
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
from gateway.store.codec import commit_arguments, pack_ids, read_claimed, unpack_ids

# What a call says of all its sessions together.
SHARED = 5


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_survive_packing(ids: list[int]) -> None:
    """Packed ids come back, and the packing of a concatenation is the concatenation of packings."""
    assert unpack_ids(pack_ids(ids)) == tuple(ids)
    assert pack_ids(ids) + pack_ids(ids) == pack_ids([*ids, *ids])


def _head(write: SessionWrite) -> list[str]:
    head = commit_arguments([write], 120)[SHARED]
    assert isinstance(head, str)
    return head.split()


def test_times_of_a_write() -> None:
    """Keys outlive the deadline; a session without a connection has no owner's slack."""
    assert commit_arguments([], 120)[0] == (120 + KEEP_S) * 1000
    assert _head(SessionWrite("s", 1))[2] == str(round((120 + OWNER_SILENCE_S) * 1000))
    assert _head(SessionWrite("s", 1, detached=True))[2] == str(120 * 1000)


def test_arguments_are_countable() -> None:
    """Each session's arguments are preceded by their number, and by those of its parts."""
    write = SessionWrite(
        "s",
        7,
        entries=(LogEntry(1, b"x"),),
        streams=(StreamWrite("a"), StreamWrite("b", opened=b"{}"), StreamWrite("c", ended=b"{}")),
        acked=1,
        bills=(UsageEvent("s/a", b"{}"),),
    )
    arguments = commit_arguments([write, write], 120)
    each = 1 + 1 + 2 + 1 + (3 + 5 + 3)
    assert len(arguments) == SHARED + 2 * each
    assert arguments[SHARED] == arguments[SHARED + each]
    mode, epoch, _, acked, *counts = _head(write)
    assert (mode, epoch, acked, counts) == ("write", "7", "1", [str(each - 1), "1", "1", "3"])


@pytest.mark.parametrize(
    ("write", "mode"),
    [
        (SessionWrite("s", 1), "write"),
        (SessionWrite("s", 1, rewrite=True), "rewrite"),
        (SessionWrite("s", 1, rewrite=True, closed=True), "close"),
    ],
)
def test_the_mode_of_a_write(write: SessionWrite, mode: str) -> None:
    """What closes a session does nothing else."""
    assert _head(write)[0] == mode


def test_a_lone_surrogate_in_an_id_survives() -> None:
    """CASES 20: an id that no codec would take cannot break the commit of everybody's sessions."""
    arguments = commit_arguments([SessionWrite("s", 1, streams=(StreamWrite("\ud83d"),))], 120)
    raw = arguments[SHARED + 2]
    assert isinstance(raw, bytes)
    fields = [b"created", b"{}", b"last_seq", b"0", b"acked", b"0"]
    fields += [b"o:" + raw, b"{}", b"f:" + raw, b"0 0"]
    claimed = read_claimed("s", 2, fields, [], [raw, b""])
    assert list(claimed.streams) == ["\ud83d"]
