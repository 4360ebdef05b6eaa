"""A link's pings: their pace, whatever becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.upstream import link
from gateway.upstream.breaker import Breaker, BreakerState
from gateway.upstream.link import Link
from mesh.clock import SystemClock


class _DeadChannel:
    """A channel on which every call fails at once."""

    def __init__(self) -> None:
        self.calls = 0

    def unary_unary(self, *_args: Any, **_more: Any) -> Any:
        return self._fail

    unary_stream = unary_unary

    async def _fail(self, *_args: Any, **_more: Any) -> None:
        self.calls += 1
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing)


async def test_pings_that_fail_at_once_keep_their_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is going away does not spin the loop, nor open a breaker within a millisecond."""
    monkeypatch.setattr(link, "PING_EVERY_S", 0.05)
    changes: list[BreakerState] = []
    breaker = Breaker(lambda: 0.0, changes.append)
    pinging = Link("i0", "nowhere", (), SystemClock(), breaker, lambda: None)
    channel = _DeadChannel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.12):
            await pinging._ping(channel)  # type: ignore[arg-type]
    assert 1 <= channel.calls <= 2
    assert changes == []
