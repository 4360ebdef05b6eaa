"""How a service process starts, drains and ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

__all__ = ["die_with_parent", "run_service", "spare_collector", "stop_event"]

PR_SET_PDEATHSIG = 1
# New objects, less those that are gone again, until the collector looks for cycles among them. Frames in
# flight alone are more than CPython's own 700; ten thousand dead ones are a megabyte or two.
YOUNG_OBJECTS_MAX = 10_000


def stop_event(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that SIGTERM or SIGINT sets: time to drain."""
    event = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, event.set)
    return event


def run_service(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run a service's `main` on uvloop until it returns; it gets the event that asks it to drain."""

    async def body() -> None:
        await main(stop_event(asyncio.get_running_loop()))

    with (
        contextlib.suppress(KeyboardInterrupt),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(body())


def spare_collector() -> None:
    """Let the cycle collector look less often, and never at what is loaded by now."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)


def die_with_parent() -> None:
    """Ask the kernel for a SIGTERM when the parent dies, so that no orphan holds a port (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
