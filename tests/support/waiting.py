"""Waiting with a bound, instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until", "wait_until_sync"]

T = TypeVar("T")
PAUSE_S = 0.01


async def wait_until(read: Callable[[], T], within_s: float = 5.0) -> T:
    """The first truthy value of `read`; fails when none comes in time."""
    deadline = time.monotonic() + within_s
    while not (value := read()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {value!r}"
        await asyncio.sleep(PAUSE_S)
    return value


def wait_until_sync(read: Callable[[], T], within_s: float = 5.0) -> T:
    """As `wait_until`, for tests without a loop."""
    deadline = time.monotonic() + within_s
    while not (value := read()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {value!r}"
        time.sleep(PAUSE_S)
    return value
