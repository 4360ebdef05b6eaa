"""Who owns a session, by the word of every session store: epochs, ties and tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.store.base import LogEntry, OvertakenError, SessionWrite, UsageEvent
from tests.support.store_under_test import STORES, StoreUnderTest, store_of

HASH = "5f" * 32
CREATED = json.dumps({"tenant": "t", "token_hash": HASH}).encode()
FIRST = SessionWrite("s1", epoch=1, created=CREATED)
ENTRY = (LogEntry(1, b"{}"),)


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[StoreUnderTest]:
    async with store_of(request) as under_test:
        yield under_test


async def _claimed(store: StoreUnderTest) -> int:
    claimed = await store.other.claim("s1", HASH)
    assert claimed is not None
    return claimed.epoch


async def test_epochs_rise_by_one(store: StoreUnderTest) -> None:
    """CASES 50: each claim raises the epoch by one."""
    await store.one.commit([FIRST])
    assert [await _claimed(store) for _ in range(3)] == [2, 3, 4]
    assert await store.one.raise_epoch("s1", 4, "a") == 5
    assert await store.one.raise_epoch("s1", 9, "a") == 10
    claimed = await store.other.claim("s1", HASH, "b", above=20)
    assert claimed is not None
    assert (claimed.epoch, claimed.former) == (21, "a")


async def test_of_two_with_one_epoch_the_first_stays(store: StoreUnderTest) -> None:
    """CASES 50: one claimed it, the other raised it while the store was away: one of them writes."""
    assert await store.one.raise_epoch("s1", 1, "a") is None
    await store.one.commit([FIRST], "a")
    claimed = await store.other.claim("s1", HASH, "b")
    assert claimed is not None
    assert (claimed.epoch, claimed.former) == (2, "a")
    late = SessionWrite("s1", 2, entries=ENTRY, bills=(UsageEvent("s1/x", b"{}"),))
    for write in (late, replace(late, rewrite=True, created=CREATED), replace(late, closed=True)):
        assert (await store.one.commit([write], "a")).fenced == {"s1"}
    assert not (await store.other.commit([SessionWrite("s1", 2, entries=ENTRY)], "b")).fenced
    assert not (await store.one.commit([replace(late, epoch=3)], "a")).fenced
    assert (await store.other.commit([SessionWrite("s1", 2)], "b")).fenced == {"s1"}
    assert len(await store.usage()) == 1


async def test_who_was_overtaken_raises_nothing(store: StoreUnderTest) -> None:
    """What it remembers is older than what the new owner did, also after a claim whose answer was lost (§4.6)."""
    await store.one.commit([FIRST], "a")
    assert await store.other.claim("s1", HASH, "b", above=1) is not None
    with pytest.raises(OvertakenError):
        await store.one.raise_epoch("s1", 1, "a")
    assert not (await store.other.commit([SessionWrite("s1", 2, entries=ENTRY)], "b")).fenced
    lost = await store.one.claim("s1", HASH, "a", above=1)
    assert lost is not None
    assert (lost.epoch, lost.former, lost.since) == (3, "b", 2)
    with pytest.raises(OvertakenError):
        await store.one.raise_epoch("s1", 1, "a")
    heard = await store.one.claim("s1", HASH, "a", above=1)
    assert heard is not None
    assert (heard.epoch, heard.former, heard.since) == (4, "a", 3)
    assert await store.one.raise_epoch("s1", heard.epoch, "a") == 5


async def test_who_owns_it_without_a_break_knows_it_all(store: StoreUnderTest) -> None:
    """Commits, whole ones too, and claims and raises with lost answers: no other owner was in between."""
    await store.one.commit([FIRST], "a")
    assert await store.one.claim("s1", HASH, "a", above=1) is not None
    assert await store.one.raise_epoch("s1", 1, "a") == 3
    await store.one.commit([SessionWrite("s1", 3, entries=ENTRY)], "a")
    claimed = await store.one.claim("s1", HASH, "a", above=3)
    assert claimed is not None
    assert (claimed.former, claimed.since) == ("a", 1)
    await store.one.commit([replace(FIRST, epoch=4, rewrite=True)], "a")
    assert await store.one.raise_epoch("s1", 4, "a") == 5


async def test_who_is_newer_than_the_store_takes_it_back(store: StoreUnderTest) -> None:
    """A store with old data has an owner of long ago: the memory of a later epoch is the newer one."""
    await store.one.commit([FIRST], "b")
    assert await store.one.raise_epoch("s1", 3, "a") == 4
    claimed = await store.one.claim("s1", HASH, "a", above=3)
    assert claimed is not None
    assert (claimed.former, claimed.since) == ("a", 3)


async def test_another_token_is_refused(store: StoreUnderTest) -> None:
    """A wrong token claims nothing and leaves the owner alone."""
    await store.one.commit([FIRST])
    with pytest.raises(PermissionError):
        await store.other.claim("s1", "00" * 32)
    assert await _claimed(store) == 2
