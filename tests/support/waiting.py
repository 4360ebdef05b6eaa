"""Waiting for a condition with a bound, instead of sleeping for a guess."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WAIT_S = 10.0
POLL_S = 0.005


async def wait_until(condition: Callable[[], object], within_s: float = WAIT_S) -> None:
    """Return once `condition()` is true; `TimeoutError` when it is not within the bound."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the condition is anything a test can see
            await asyncio.sleep(POLL_S)
