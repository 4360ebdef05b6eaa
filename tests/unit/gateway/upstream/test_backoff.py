"""Waiting before another try."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gateway.upstream import backoff
from gateway.upstream.backoff import (
    RETRY_BURST,
    RETRY_MAX_S,
    RETRY_MIN_S,
    RETRY_SHARE,
    Backoff,
    RetryBudget,
)


async def test_waits_double_within_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 114: waits grow to the bound, are never equal by rule, and begin again after a reset."""
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(backoff.asyncio, "sleep", note)
    waiting = Backoff()
    for _ in range(10):
        await waiting.wait()
    assert RETRY_MIN_S / 2 <= waits[0] <= RETRY_MIN_S
    assert all(w <= RETRY_MAX_S for w in waits)
    assert waits[-1] >= RETRY_MAX_S / 2
    waiting.reset()
    await waiting.wait()
    assert waits[-1] <= RETRY_MIN_S


async def test_a_lost_cancellation_is_found_at_the_next_wait() -> None:
    """Who was asked to end, and whose call swallowed the asking, does not reconnect for ever."""
    rounds = 0

    async def reconnecting() -> None:
        nonlocal rounds
        backoff = Backoff()
        while True:
            rounds += 1
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await backoff.wait()

    task = asyncio.create_task(reconnecting())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=2)
    assert task.cancelled()
    assert rounds == 1


def test_a_budget_bounds_what_is_tried_again() -> None:
    """A burst, then a fifth as many as were taken; quiet times save up no more than a burst."""
    budget = RetryBudget()
    for _ in range(10 * RETRY_BURST):
        budget.taken()
    assert [budget.spend() for _ in range(RETRY_BURST + 1)] == [True] * RETRY_BURST + [False]
    for _ in range(round(3 / RETRY_SHARE)):
        budget.taken()
    assert [budget.spend() for _ in range(4)] == [True, True, True, False]
