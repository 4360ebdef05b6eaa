"""How long to wait before trying a peer again, and how often anybody may."""

from __future__ import annotations

import asyncio
import random

__all__ = ["Backoff", "RetryBudget"]

RETRY_MIN_S = 0.05
RETRY_MAX_S = 2.0
# Openings that may be tried again in a burst, and the share of those that were taken beyond it.
RETRY_BURST = 100
RETRY_SHARE = 0.2


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


class RetryBudget:
    """How often this gateway may ask another instance for a stream that one refused.

    When all of them refuse, trying each stream everywhere multiplies the load that they cannot bear: so a
    burst may, and after it a fifth as many as were taken. A stream that runs is none of this: it is
    looked for until its own tries are used up.
    """

    def __init__(self) -> None:
        self._left = float(RETRY_BURST)

    def taken(self) -> None:
        """A stream was taken by an instance."""
        self._left = min(self._left + RETRY_SHARE, RETRY_BURST)

    def spend(self) -> bool:
        """Whether one more may be tried again."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
