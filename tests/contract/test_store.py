"""What every session store promises: in memory, on a server, divided, and on a cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.store.base import (
    ENDS_KEPT_MAX,
    KEEP_S,
    OWNER_SILENCE_S,
    SWEEP_RETRY_S,
    CommitResult,
    LogEntry,
    SessionOverError,
    SessionWrite,
    StoredSession,
    StreamWrite,
    UsageEvent,
)
from gateway.store.redis import COMMIT_SESSIONS_MAX
from tests.support.store_under_test import RESUME_TTL_S, STORES, StoreUnderTest, store_of

HASH = "5f" * 32
CREATED = json.dumps({"tenant": "t", "token_hash": HASH}).encode()
FIRST = SessionWrite("s1", epoch=1, created=CREATED)
OPENED = StreamWrite("a", opened=b'{"seed":7}', instance="i0")


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[StoreUnderTest]:
    async with store_of(request) as under_test:
        yield under_test


def _entries(*seqs: int) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(seq, f'{{"seq":{seq},"delta":"é:\\u0000"}}'.encode()) for seq in seqs)


async def _claim(store: StoreUnderTest, session: str = "s1") -> StoredSession:
    claimed = await store.other.claim(session, HASH)
    assert claimed is not None
    return claimed


async def _is_over(store: StoreUnderTest) -> None:
    with pytest.raises(SessionOverError):
        await store.one.claim("s1", HASH, bars=True)
    with pytest.raises(SessionOverError):
        await store.one.raise_epoch("s1", 1, "a")


async def test_what_was_committed_is_claimed(store: StoreUnderTest) -> None:
    """Another gateway gets everything back: constant part, frames, streams with ids and counters."""
    first = replace(FIRST, entries=_entries(1, 2), streams=(OPENED,))
    more = SessionWrite(
        "s1",
        epoch=1,
        entries=_entries(3),
        streams=(
            StreamWrite(
                "a",
                token_ids=(0, 7, 2**32 - 1),
                framed_bytes=9,
                framed_tokens=3,
                text_state=bytes(range(40)),
            ),
            StreamWrite("b:x", opened=b"{}", instance="i1", token_ids=(5,)),
        ),
    )
    assert not (await store.one.commit([first])).fenced
    assert not (await store.one.commit([more])).fenced
    claimed = await _claim(store)
    assert (claimed.session, claimed.epoch, claimed.created) == ("s1", 2, CREATED)
    assert (claimed.last_seq, claimed.entries) == (3, _entries(1, 2, 3))
    stream = claimed.streams["a"]
    assert (stream.opened, stream.instance) == (b'{"seed":7}', "i0")
    assert stream.token_ids == (0, 7, 2**32 - 1)
    assert (stream.framed_bytes, stream.framed_tokens) == (9, 3)
    assert stream.text_state == bytes(range(40))
    assert claimed.streams["b:x"].text_state == b""
    assert claimed.streams["b:x"].token_ids == (5,)
    assert claimed.streams["b:x"].instance == "i1"


async def test_ids_are_appended_over_commits(store: StoreUnderTest) -> None:
    """CASES 62: token ids of many commits come back in order, and an instance may change."""
    await store.one.commit([replace(FIRST, streams=(OPENED,))])
    for n in range(50):
        stream = StreamWrite("a", token_ids=(n, n + 1), instance="i9" if n == 30 else None)
        await store.one.commit([SessionWrite("s1", 1, streams=(stream,))])
    stored = (await _claim(store)).streams["a"]
    assert stored.token_ids == tuple(t for n in range(50) for t in (n, n + 1))
    assert stored.instance == "i9"


async def test_acknowledged_frames_are_dropped(store: StoreUnderTest) -> None:
    """Frames below `acked` go; the last number is still known when none is left."""
    await store.one.commit([replace(FIRST, entries=_entries(*range(1, 11)))])
    await store.one.commit([SessionWrite("s1", 1, entries=_entries(11), acked=8)])
    await store.one.commit([SessionWrite("s1", 1, acked=11)])
    claimed = await _claim(store)
    assert (claimed.entries, claimed.acked, claimed.last_seq) == (_entries(11), 11, 11)
    await store.other.commit([SessionWrite("s1", 2, acked=12)])
    claimed = await _claim(store)
    assert (claimed.entries, claimed.last_seq) == ((), 11)


async def test_numbers_may_jump(store: StoreUnderTest) -> None:
    """CASES 57: an owner that goes on above a client's number leaves a gap, and frames stay in order."""
    await store.one.commit([replace(FIRST, entries=_entries(1, 2))])
    await store.one.commit([SessionWrite("s1", 1, entries=_entries(121, 122), acked=121)])
    claimed = await _claim(store)
    assert (claimed.entries, claimed.last_seq) == (_entries(121, 122), 122)


async def test_a_log_of_any_length_is_written_whole(store: StoreUnderTest) -> None:
    """More frames than a script's stack holds; the session is claimed, and swept, like any other."""
    entries = _entries(*range(1, 20_001))
    assert not (await store.one.commit([replace(FIRST, entries=entries)])).fenced
    assert (await _claim(store)).entries == entries


async def test_frames_that_came_already_are_not_doubled(store: StoreUnderTest) -> None:
    """The same entries again (the answer to the first attempt was lost) change nothing."""
    write = SessionWrite("s1", 1, entries=_entries(1, 2))
    await store.one.commit([FIRST])
    await store.one.commit([write])
    await store.one.commit([write])
    assert (await _claim(store)).entries == _entries(1, 2)


async def test_an_ended_stream_leaves_its_end_alone(store: StoreUnderTest) -> None:
    """After its end only the end is kept of a stream."""
    await store.one.commit([replace(FIRST, streams=(replace(OPENED, token_ids=(1, 2)),))])
    await store.one.commit([SessionWrite("s1", 1, streams=(StreamWrite("a", ended=b'{"x":1}'),))])
    stored = (await _claim(store)).streams["a"]
    assert stored.ended == b'{"x":1}'
    assert (stored.token_ids, stored.opened) == ((), b"")


async def test_ends_are_bounded(store: StoreUnderTest) -> None:
    """At the bound the oldest end gives way."""
    ends = tuple(StreamWrite(f"e{n}", ended=b"{}") for n in range(ENDS_KEPT_MAX + 2))
    await store.one.commit([replace(FIRST, streams=ends)])
    streams = (await _claim(store)).streams
    assert len(streams) == ENDS_KEPT_MAX
    assert "e0" not in streams
    assert "e2" in streams


async def test_an_older_owner_is_fenced(store: StoreUnderTest) -> None:
    """CASES 55: after a claim nothing of the older owner is written; other sessions' writes are."""
    second = replace(FIRST, session="s2")
    await store.one.commit([FIRST, second])
    assert (await _claim(store)).epoch == 2
    late = [
        SessionWrite("s1", 1, entries=_entries(1)),
        SessionWrite("s2", 1, entries=_entries(1)),
        replace(FIRST, rewrite=True),
        SessionWrite("s1", 1, closed=True),
    ]
    result = await store.one.commit(late)
    assert result.fenced == {"s1"}
    await store.one.commit([SessionWrite("s1", 1, closed=True)])
    assert (await _claim(store)).entries == ()
    assert (await _claim(store, "s2")).entries == _entries(1)


async def test_a_commit_of_everything(store: StoreUnderTest) -> None:
    """However many sessions it holds, each has its own verdict."""
    names = [f"s{i}" for i in range(2 * COMMIT_SESSIONS_MAX + 1)]
    assert (
        await store.one.commit([replace(FIRST, session=name) for name in names]) == CommitResult()
    )
    for name in (names[0], names[-1]):
        await _claim(store, name)
    again = [SessionWrite(name, 1) for name in (*names, "never-seen")]
    result = await store.one.commit(again)
    assert result == CommitResult(frozenset({names[0], names[-1]}), frozenset({"never-seen"}))


@pytest.mark.parametrize("session", ["nobody", "", "a b", "s1}:log", "\ud83d", "x" * 65])
async def test_unknown_sessions_are_none(store: StoreUnderTest, session: str) -> None:
    """CASES 20: whatever a client calls a session, an unknown one is None and nothing breaks."""
    await store.one.commit([FIRST])
    assert await store.one.claim(session, HASH) is None


async def test_what_a_client_was_told_is_gone_does_not_come(store: StoreUnderTest) -> None:
    """A first commit that comes after its client's `session_expired` is fenced: the client asked anew (§4.8)."""
    assert await store.other.claim("s1", HASH, bars=True) is None
    assert await store.other.claim("s2", "0" * 64, bars=True) is None
    assert await store.other.claim("s3", HASH) is None
    writes = [replace(FIRST, session=name) for name in ("s1", "s2", "s3")]
    assert (await store.one.commit(writes)).fenced == {"s1"}
    assert (await store.one.commit([replace(FIRST, rewrite=True)])).fenced == {"s1"}
    assert await store.other.claim("s1", HASH) is None
    # Neither a stranger with another token nor the session's own gateway bars it.
    await _claim(store, "s2")
    await _claim(store, "s3")


async def test_a_write_to_nothing_is_missing(store: StoreUnderTest) -> None:
    """A store that lost the session says so, and takes it when it is written anew."""
    part = SessionWrite("s1", 3, entries=_entries(41))
    assert (await store.one.commit([part])).missing == {"s1"}
    assert await store.one.raise_epoch("s1", 1, "a") is None
    whole = SessionWrite("s1", 3, created=CREATED, entries=_entries(41), acked=41, rewrite=True)
    result = await store.one.commit([whole])
    assert not result.missing
    claimed = await _claim(store)
    assert (claimed.epoch, claimed.entries, claimed.last_seq) == (4, _entries(41), 41)


async def test_rewrite_replaces_everything(store: StoreUnderTest) -> None:
    """The owner's memory is the truth: nothing older shows through."""
    old = replace(FIRST, entries=_entries(1, 2), streams=(OPENED, StreamWrite("z", ended=b"{}")))
    await store.one.commit([old])
    await store.one.commit(
        [SessionWrite("s1", 1, streams=(StreamWrite("a", token_ids=(1, 2)),), entries=_entries(3))]
    )
    stream = replace(OPENED, token_ids=(9,), framed_bytes=1, framed_tokens=1)
    anew = replace(FIRST, entries=_entries(5), acked=5, streams=(stream,), rewrite=True)
    await store.one.commit([anew])
    claimed = await _claim(store)
    assert (claimed.entries, claimed.last_seq) == (_entries(5), 5)
    assert list(claimed.streams) == ["a"]
    assert claimed.streams["a"].token_ids == (9,)


async def test_rewrite_keeps_the_number_when_all_is_acknowledged(store: StoreUnderTest) -> None:
    """CASES 57: with no frame left, the last number given is known from `acked`."""
    await store.one.commit([replace(FIRST, acked=71, rewrite=True)])
    assert (await _claim(store)).last_seq == 70


async def test_closed_is_over(store: StoreUnderTest) -> None:
    """A closed session is not merely unknown, and a late write of its owner does not bring it back (§4.8)."""
    await store.one.commit([replace(FIRST, streams=(OPENED,))])
    await store.one.commit([SessionWrite("s1", 1, closed=True)])
    await _is_over(store)
    result = await store.one.commit([SessionWrite("s1", 1, entries=_entries(1))])
    assert result.fenced == {"s1"}
    await store.pass_time(RESUME_TTL_S + OWNER_SILENCE_S + 1)
    assert await store.other.sweep(10) == []


async def test_a_detached_session_is_swept_once(store: StoreUnderTest) -> None:
    """§4.7: when its time is up one sweeper gets it with its streams, and no resume does any more."""
    await store.one.commit([replace(FIRST, streams=(OPENED,))])
    await store.one.commit([SessionWrite("s1", 1, detached=True)])
    await store.pass_time(RESUME_TTL_S - 1)
    assert await store.other.sweep(10) == []
    await store.pass_time(2)
    (swept,) = await store.other.sweep(10)
    assert (swept.session, swept.epoch, list(swept.streams)) == ("s1", 2, ["a"])
    assert await store.one.sweep(10) == []
    await _is_over(store)
    assert (await store.one.commit([SessionWrite("s1", 1)])).fenced == {"s1"}
    await store.other.commit([SessionWrite("s1", swept.epoch, closed=True)])
    await _is_over(store)


async def test_resume_puts_the_deadline_off(store: StoreUnderTest) -> None:
    """CASES 60: a session that was resumed is not swept at the deadline of its absence."""
    await store.one.commit([FIRST])
    await store.one.commit([SessionWrite("s1", 1, detached=True)])
    await store.pass_time(RESUME_TTL_S - 1)
    await _claim(store)
    await store.pass_time(RESUME_TTL_S)
    assert await store.one.sweep(10) == []
    assert (await _claim(store)).epoch == 3


async def test_a_killed_owner_is_swept(store: StoreUnderTest) -> None:
    """CASES 53: writes keep a session alive however long it runs; silence ends it."""
    await store.one.commit([replace(FIRST, streams=(OPENED,))])
    for _ in range(5):
        await store.pass_time(RESUME_TTL_S)
        await store.one.commit([SessionWrite("s1", 1)])
        assert await store.other.sweep(10) == []
    await store.pass_time(RESUME_TTL_S + OWNER_SILENCE_S + 1)
    assert [s.session for s in await store.other.sweep(10)] == ["s1"]


async def test_paused_streams_live_with_their_session(store: StoreUnderTest) -> None:
    """A stream that says nothing for long keeps its ids while its session is written."""
    await store.one.commit([replace(FIRST, streams=(replace(OPENED, token_ids=(1, 2, 3)),))])
    for _ in range(4):
        await store.pass_time(RESUME_TTL_S)
        await store.one.commit([SessionWrite("s1", 1)])
    assert (await _claim(store)).streams["a"].token_ids == (1, 2, 3)


async def test_sweep_is_limited(store: StoreUnderTest) -> None:
    """A sweep takes what it may, the next one the rest."""
    names = {f"s{n}" for n in range(5)}
    await store.one.commit([replace(FIRST, session=name, detached=True) for name in names])
    await store.pass_time(RESUME_TTL_S + 1)
    first = await store.one.sweep(3)
    second = await store.other.sweep(3)
    assert (len(first), len(second)) == (3, 2)
    assert {s.session for s in (*first, *second)} == names


async def test_a_dead_sweeper_leaves_its_work_to_the_next(store: StoreUnderTest) -> None:
    """§4.7: a session that was swept and not closed is offered again, with a higher epoch."""
    await store.one.commit([replace(FIRST, streams=(OPENED,), detached=True)])
    await store.pass_time(RESUME_TTL_S + 1)
    (first,) = await store.one.sweep(10)
    await store.pass_time(SWEEP_RETRY_S + 1)
    (second,) = await store.other.sweep(10)
    assert (second.session, second.epoch) == (first.session, first.epoch + 1)
    assert list(second.streams) == ["a"]
    await store.other.commit([SessionWrite("s1", second.epoch, closed=True)])
    await store.pass_time(SWEEP_RETRY_S + 1)
    assert await store.one.sweep(10) == []


async def test_everything_expires(store: StoreUnderTest) -> None:
    """With nobody to sweep, nothing of a session stays for ever."""
    await store.one.commit([replace(FIRST, entries=_entries(1), streams=(OPENED,), detached=True)])
    await store.pass_time(RESUME_TTL_S + KEEP_S + 1)
    assert await store.one.claim("s1", HASH) is None
    assert await store.one.raise_epoch("s1", 1, "a") is None


async def test_a_bill_is_written_with_the_rest_or_not_at_all(store: StoreUnderTest) -> None:
    """CASES 55: an owner that was refused bills nothing; who ends or closes a session bills with that."""
    first, second, late = (UsageEvent(f"s1/{n}", b"{}") for n in "abc")
    await store.one.commit([replace(FIRST, streams=(OPENED,))])
    end = StreamWrite("a", ended=b"{}")
    await store.one.commit([SessionWrite("s1", 1, streams=(end,), bills=(first,))])
    await _claim(store)
    refused = [
        SessionWrite("s1", 1, bills=(late,)),
        SessionWrite("s1", 1, closed=True, bills=(late,)),
        SessionWrite("unknown", 1, bills=(late,)),
    ]
    for write in refused:
        await store.one.commit([write])
    await store.other.commit([SessionWrite("s1", 2, closed=True, bills=(second,))])
    await store.other.commit([SessionWrite("s1", 2, closed=True, bills=(late,))])
    assert await store.usage() == [first, second]


async def test_usage_is_appended(store: StoreUnderTest) -> None:
    """Usage events arrive, each once."""
    events = [UsageEvent(f"s1/a/{n}", f'{{"n":{n}}}'.encode()) for n in range(3)]
    await store.one.add_usage(events[:2])
    await store.other.add_usage(events[2:])
    assert sorted(await store.usage(), key=lambda event: event.id) == events


async def test_a_ticket_is_good_once(store: StoreUnderTest) -> None:
    """A ticket works once, on any gateway, within its time."""
    await store.one.put_ticket("k", b"v", 30)
    assert await store.other.take_ticket("k") == b"v"
    assert await store.one.take_ticket("k") is None
    await store.one.put_ticket("late", b"v", 30)
    await store.pass_time(31)
    assert await store.one.take_ticket("late") is None
    assert await store.one.take_ticket("\ud83d") is None


async def test_the_first_note_stays(store: StoreUnderTest) -> None:
    """Of several gateways that write under one name one is first, until it is dropped or its time is up."""
    assert await store.one.find_note("n") is None
    assert await store.one.note("n", b"one", 30) == b"one"
    assert await store.other.note("n", b"other", 300) == b"one"
    assert await store.other.find_note("n") == b"one"
    await store.pass_time(31)
    assert await store.one.find_note("n") is None
    assert await store.other.note("n", b"other", 30) == b"other"
    await store.one.put_note("n", b"\x00anew", 300)
    await store.pass_time(31)
    assert await store.other.find_note("n") == b"\x00anew"
    await store.other.drop_note("n")
    assert await store.one.find_note("n") is None


async def test_generation_mark_stays(store: StoreUnderTest) -> None:
    """All gateways read the same mark, as long as the store keeps its data."""
    mark = await store.one.generation_mark()
    assert mark == await store.other.generation_mark() == await store.one.generation_mark()


async def test_empty_commit(store: StoreUnderTest) -> None:
    """Nothing to write is no error."""
    assert await store.one.commit([]) == await store.one.commit([])
