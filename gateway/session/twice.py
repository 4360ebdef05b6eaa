"""An exchange with the store that was cut off is made once more, before the store counts as away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.store.base import StoreLateError, StoreUnavailableError
from mesh.clock import Clock

__all__ = ["SOON_S", "twice"]

T = TypeVar("T")

# An exchange that failed within this was cut off, by a network or by a store that restarts; one that
# took longer was not answered, and the next one would not be either.
SOON_S = 0.25


async def twice(exchange: Callable[[], Awaitable[T]], again: Callable[[], None], clock: Clock) -> T:
    """Make an exchange, and when it is cut off once more, after `again`.

    A connection that breaks is no store that is away: what goes over another one at once is in the
    store before anybody is told that it need not be. Nor is one whose answer this process was too
    busy to hear. Raises `StoreUnavailableError`.
    """
    began = clock.monotonic()
    try:
        return await exchange()
    except StoreLateError:
        pass
    except StoreUnavailableError:
        if clock.monotonic() >= began + SOON_S:
            raise
    again()
    return await exchange()
