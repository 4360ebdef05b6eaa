"""Waiting with a bound, instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["SURELY_S", "wait_until", "wait_until_sync"]

T = TypeVar("T")
PAUSE_S = 0.01
# What comes at once on a quiet machine comes within this on a busy one; below the 10 s of those limits
# of ours that tests shorten, so that a limit which is not kept is seen.
SURELY_S = 9.0


async def wait_until(read: Callable[[], T], within_s: float = SURELY_S) -> T:
    """The first truthy value of `read`; fails when none comes in time."""
    deadline = time.monotonic() + within_s
    while not (value := read()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {value!r}"
        await asyncio.sleep(PAUSE_S)
    return value


def wait_until_sync(read: Callable[[], T], within_s: float = SURELY_S) -> T:
    """As `wait_until`, for tests without a loop."""
    deadline = time.monotonic() + within_s
    while not (value := read()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {value!r}"
        time.sleep(PAUSE_S)
    return value
