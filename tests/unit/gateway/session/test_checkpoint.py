"""Write-behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway.session.checkpoint import (
    MARK_CHECK_S,
    OWNER_TOLD_S,
    WRITES_FAILED_MAX,
    Checkpointer,
)
from gateway.session.presence import STEADY_ANSWERS, STEADY_S, STEADY_WITHIN_S, StoreState
from gateway.store.base import CommitResult, SessionWrite, StoreUnavailableError
from gateway.store.memory import MemoryStore
from mesh.store_link import COMMAND_TIMEOUT_S
from tests.support.clock import FakeClock
from tests.support.flaky_store import FlakyStore
from tests.support.session_world import WindowedClient, World, settle
from tests.support.told_usage import stream_bills


class _SlowStore(MemoryStore):
    """Commits when told; counts how many are on their way at once."""

    def __init__(self) -> None:
        super().__init__(FakeClock(), 120)
        self.go = asyncio.Event()
        self.under_way = 0
        self.most = 0

    async def commit(self, writes: Sequence[SessionWrite], gateway: str = "") -> CommitResult:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.go.wait()
        self.under_way -= 1
        return await super().commit(writes, gateway)


async def test_commits_never_overtake_each_other() -> None:
    """The last one of a process that ends waits for the one that is under way."""
    store = _SlowStore()
    world = World(lambda _: [b"x"] * 5, store)
    client = WindowedClient()
    gateway = world.gateways[0]
    client.connect(gateway)
    client.read()
    await client.generate("s")
    first = asyncio.create_task(gateway.registry.checkpointer.commit())
    await settle()
    await world.step(3)
    last = asyncio.create_task(gateway.registry.close())
    await settle()
    store.go.set()
    await asyncio.gather(first, last)
    world.close()
    assert store.most == 1


class _PickyStore(MemoryStore):
    """Cannot carry out the writes of one session, for a number of times."""

    def __init__(self) -> None:
        super().__init__(FakeClock(), 120)
        self.refuses = ""
        self.times = 0

    async def commit(self, writes: Sequence[SessionWrite], gateway: str = "") -> CommitResult:
        failed = {w.session for w in writes if w.session == self.refuses and self.times > 0}
        self.times -= len(failed)
        taken = [write for write in writes if write.session not in failed]
        return replace(await super().commit(taken, gateway), failed=frozenset(failed))


@pytest.mark.parametrize("lasting", [False, True])
async def test_a_session_that_cannot_be_written_stays_alone(lasting: bool) -> None:
    """It is tried again, whole, a few times, and then let go with 1011; the store is not away for others."""
    store = _PickyStore()
    world = World(lambda _: [b"x"] * 3, store)
    broken, sound = WindowedClient(), WindowedClient()
    for client in (broken, sound):
        client.connect(world.gateways[0])
        client.read()
        await client.generate("s")
    store.refuses, store.times = broken.session, 99 if lasting else WRITES_FAILED_MAX
    checkpointer = world.gateways[0].registry.checkpointer
    for _ in range(WRITES_FAILED_MAX):
        await world.commit()
        broken.read()
        assert broken.accepted == set(), "it waits for its commit"
    for _ in range(4):
        await world.commit()
        await world.step(2)
        broken.read()
        sound.read()
    assert checkpointer.state is StoreState.THERE
    assert sound.ends["s"]["finish_reason"] == "stop"
    assert broken.socket.close_code == (1011 if lasting else None)
    assert list(broken.ends) == ([] if lasting else ["s"])
    world.close()


async def test_a_sessions_fault_stays_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that cannot be written is let go with 1011; the others' commit goes on."""
    world = World(lambda _: [b"x"] * 3)
    broken, sound = WindowedClient(), WindowedClient()
    for client in (broken, sound):
        client.connect(world.gateways[0])
        client.read()
        await client.generate("s")
    owner = next(
        o for o in world.gateways[0].registry.owners if o.identity.session == broken.session
    )
    monkeypatch.setattr(owner.journal, "take", lambda *_, **__: 1 / 0)
    await world.commit()
    await world.step(6)
    sound.read()
    assert broken.socket.close_code == 1011
    assert sound.ends["s"]["finish_reason"] == "stop"
    assert owner not in world.gateways[0].registry.owners
    world.close()


class _LateStore(MemoryStore):
    """Takes its time, by the test's clock; what would take more than a command may was not answered."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        super().__init__(self.clock, 120)
        self.takes_s = 0.0
        self.writes: list[SessionWrite] = []

    def _take_time(self) -> None:
        self.clock.advance(min(self.takes_s, COMMAND_TIMEOUT_S))
        if self.takes_s >= COMMAND_TIMEOUT_S:
            raise StoreUnavailableError

    async def generation_mark(self) -> str:
        self._take_time()
        return await super().generation_mark()

    async def commit(self, writes: Sequence[SessionWrite], gateway: str = "") -> CommitResult:
        self._take_time()
        self.writes += writes
        return await super().commit(writes, gateway)


async def test_a_slow_store_does_not_come_and_go() -> None:
    """One that answers late, or now and then not at all, is away once: clients hear of it once."""
    store = _LateStore()
    world = World(lambda _: [b"x"] * 200, store)
    store.clock = world.clock
    client, checkpointer = await _one_stream(world)
    store.clock.advance(MARK_CHECK_S)
    states = []
    for tick in range(60):
        store.takes_s = COMMAND_TIMEOUT_S if tick % 5 == 0 else 0.8 * COMMAND_TIMEOUT_S
        await world.step()
        await checkpointer.tick()
        states.append(checkpointer.state)
    assert StoreState.THERE not in states
    assert StoreState.STEADYING in states
    levels = [f["ack_level"] for f in client.socket.frames() if f["type"] == "checkpoint"]
    assert set(levels) == {"memory"}
    store.takes_s = 0.0
    for _ in range(STEADY_ANSWERS + 2):
        await checkpointer.tick()
        store.clock.advance(STEADY_S / STEADY_ANSWERS)
    world.close()
    assert checkpointer.state is StoreState.THERE


async def test_a_store_that_steadies_is_written_to_as_ever() -> None:
    """What is live is written whole once, at its return; then what is new, however slow it is."""
    store = _LateStore()
    world = World(lambda _: [b"x"] * 200, store)
    store.clock = world.clock
    client, checkpointer = await _one_stream(world)
    store.clock.advance(MARK_CHECK_S)
    store.takes_s = COMMAND_TIMEOUT_S
    await checkpointer.tick()
    assert checkpointer.state is StoreState.AWAY
    store.takes_s = 2 * STEADY_WITHIN_S
    store.writes.clear()
    for _ in range(30):
        await world.step()
        client.read()
        await client.ack()
        await checkpointer.commit()
    world.close()
    assert checkpointer.state is StoreState.STEADYING
    assert [write.rewrite for write in store.writes] == [True] + [False] * 29


async def _one_stream(world: World) -> tuple[WindowedClient, Checkpointer]:
    client = WindowedClient()
    client.connect(world.gateways[0])
    client.read()
    await client.generate("s")
    checkpointer = world.gateways[0].registry.checkpointer
    await checkpointer.tick()
    await world.step()
    client.read()
    assert client.accepted == {"s"}, "an opening does not wait for a turn"
    return client, checkpointer


async def test_text_waits_for_its_turn() -> None:
    """A round has one commit for a session that has only text, however many ticks it has."""
    store = FlakyStore(MemoryStore(FakeClock(), 120))
    world = World(lambda _: [b"x"] * 60, store)  # type: ignore[arg-type]
    _, checkpointer = await _one_stream(world)
    places = round(
        world.gateways[0].deps.settings.text_commit_interval_ms
        / world.gateways[0].deps.settings.commit_interval_ms
    )
    for _ in range(places):
        await checkpointer.tick()
    before = store.commits
    for _ in range(2 * places):
        await world.step()
        await checkpointer.tick()
    world.close()
    assert store.commits - before == 2


async def test_an_end_does_not_wait_for_its_turn() -> None:
    """What a stream costs is in the store at the tick after its end."""
    world = World(lambda _: [b"x"] * 3)
    _, checkpointer = await _one_stream(world)
    await world.step(5)
    await checkpointer.tick()
    world.close()
    assert [bill["stream"] for bill in stream_bills(world.memory.usage)] == ["s"]


async def test_an_older_owner_is_told_within_its_time() -> None:
    """§4.6: also of a session that has nothing new, by the task's own looks around."""
    world = World(lambda _: [b"x"])
    client, checkpointer = await _one_stream(world)
    for _ in range(5):
        await world.step()
        await world.commit()
        client.read()
        await client.ack()
    await world.commit()
    (owner,) = world.gateways[0].registry.owners
    await world.store.claim(client.session, owner.identity.token_hash)
    waited = 0.0
    while client.socket.close_code is None and waited < 2 * OWNER_TOLD_S:
        world.clock.advance(MARK_CHECK_S)
        waited += MARK_CHECK_S
        await checkpointer.tick()
    world.close()
    assert client.socket.close_code == 4409
    assert waited <= OWNER_TOLD_S - MARK_CHECK_S, "and a slow commit has its time, too"
    assert world.gateways[0].registry.owners == []
