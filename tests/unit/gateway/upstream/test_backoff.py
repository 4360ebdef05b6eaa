"""Waiting before another try."""

from __future__ import annotations

import pytest

from gateway.upstream import backoff
from gateway.upstream.backoff import RETRY_MAX_S, RETRY_MIN_S, Backoff


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
