"""Who owns a session, by the word of every session store: epochs, ties and tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.store.base import LogEntry, SessionWrite, UsageEvent
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
    assert await store.one.raise_epoch("s1", 3, "a") == 5
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


async def test_another_token_is_refused(store: StoreUnderTest) -> None:
    """A wrong token claims nothing and leaves the owner alone."""
    await store.one.commit([FIRST])
    with pytest.raises(PermissionError):
        await store.other.claim("s1", "00" * 32)
    assert await _claimed(store) == 2
