"""The checkers can fail: each of these faults of ours is found within 250 runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.metering.events import StreamFinished
from gateway.session.journal import Journal
from gateway.session.registry import SessionRegistry
from gateway.store.base import UsageEvent
from gateway.store.memory import MemoryStore
from seedance.protocol.client_streams import _Stream
from seedance.protocol.delivery import Delivery
from seedance.protocol.log import FrameLog
from seedance.protocol.receive import ReceiveWindow
from seedance.protocol.streams import StreamSet
from seedance.protocol.text import TextBuffer
from tests.simulation.world import simulate

SEEDS_MAX = 250

Patch = Callable[[pytest.MonkeyPatch], None]


def _store_without_fence(patch: pytest.MonkeyPatch) -> None:
    commit_one = MemoryStore._commit_one

    def unfenced(self: Any, write: Any, gateway: str) -> str:
        stored = self._find(write.session)
        if stored is not None and not stored.gone:
            stored.owned_by(gateway, min(stored.epoch, write.epoch), since=write.epoch)
        return commit_one(self, write, gateway)

    patch.setattr(MemoryStore, "_commit_one", unfenced)


def _client_without_memory(patch: pytest.MonkeyPatch) -> None:
    def place(self: Any, token: Any) -> Any:
        self.offset += len(token.delta.encode())
        return token

    def receive(self: Any, seq: int, frame: Any, now: float) -> list[Any]:
        self._unacknowledged += 1
        self._ack_at = self._ack_at or now
        self.base = max(self.base, seq + 1)
        return [frame]

    patch.setattr(_Stream, "place", place)
    patch.setattr(ReceiveWindow, "receive", receive)


def _offset_off_by_one(patch: pytest.MonkeyPatch) -> None:
    live = Journal._live

    def shifted(self: Any, stream: Any, *, opening: bool) -> Any:
        write = live(self, stream, opening=opening)
        return replace(write, framed_bytes=write.framed_bytes + 1)

    patch.setattr(Journal, "_live", shifted)


def _acknowledged_frames_come_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FrameLog, "replay_after", lambda self, _last_seq, _now: list(self))


def _window_without_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Delivery, "free", property(lambda _: 10_000))


def _bills_by_the_try(patch: pytest.MonkeyPatch) -> None:
    event, tries = StreamFinished.event, itertools.count()

    def twice(self: Any) -> UsageEvent:
        return replace(event(self), id=f"{self.session}/{self.stream}/{next(tries)}")

    patch.setattr(StreamFinished, "event", twice)


def _bills_what_was_computed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        TextBuffer,
        "framed_tokens",
        property(lambda b: len(b.token_ids), lambda _b, _n: None),
        raising=False,
    )


def _epoch_stays(patch: pytest.MonkeyPatch) -> None:
    find = SessionRegistry._find

    async def stale(self: Any, resume: Any, tenant: str) -> Any:
        owner, confirmed = await find(self, resume, tenant)
        owner.epoch = 1
        return owner, confirmed

    patch.setattr(SessionRegistry, "_find", stale)


def _expired_sessions_run_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamSet, "finish_all", lambda self: self.live.clear())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("break_it", "found_as", "first"),
    [
        (_store_without_fence, "took over", 126),
        (_client_without_memory, "out of place", 70),
        (_offset_off_by_one, "", 6),
        (_acknowledged_frames_come_again, "is sent again", 2),
        (_window_without_end, "beyond a window", 22),
        (_bills_by_the_try, "is billed", 34),
        (_bills_what_was_computed, "instead of", 0),
        (_epoch_stays, "epoch 1 after", 2),
        (_expired_sessions_run_on, "holds", 163),
    ],
)
def test_a_fault_of_ours_is_found(
    break_it: Patch, found_as: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mesh that breaks one promise is caught, by the checker of that promise.

    `first` only saves time: a seed that finds it soon, for as long as the code draws as it does.
    """
    break_it(monkeypatch)
    for number in range(SEEDS_MAX):
        verdict = simulate(1 + (first + number) % SEEDS_MAX)
        if any(found_as in breach for breach in verdict.breaches):
            return
    pytest.fail(f"not found in {SEEDS_MAX} runs")
