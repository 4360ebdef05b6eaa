"""How long to wait before trying the same peer again."""

from __future__ import annotations

import asyncio
import random

__all__ = ["Backoff"]

RETRY_MIN_S = 0.05
RETRY_MAX_S = 2.0


class Backoff:
    """Waits that double from `RETRY_MIN_S` to `RETRY_MAX_S`, each drawn from its upper half.

    The draw keeps gateways that lost the same peer from coming back in step.
    """

    def __init__(self) -> None:
        self._next_s = RETRY_MIN_S

    def reset(self) -> None:
        """Begin again."""
        self._next_s = RETRY_MIN_S

    async def wait(self) -> None:
        """Wait, and longer the next time.

        Raises `CancelledError` when the task was asked to end and the asking got lost: a call that
        breaks in the same turn may swallow it, and who reconnects for ever would never hear of it.
        """
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        await asyncio.sleep(self._next_s * random.uniform(0.5, 1))  # noqa: S311 - no secret
        self._next_s = min(self._next_s * 2, RETRY_MAX_S)
