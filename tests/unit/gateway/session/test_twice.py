"""An exchange that was cut off is made once more."""

from __future__ import annotations

import pytest

from gateway.session.twice import SOON_S, twice
from gateway.store.base import StoreLateError, StoreUnavailableError
from tests.support.clock import FakeClock


class _Exchange:
    """Fails so often, each time after so long."""

    def __init__(
        self,
        clock: FakeClock,
        fails: int,
        takes_s: float,
        error: type[Exception] = StoreUnavailableError,
    ) -> None:
        self.calls: list[str] = []
        self._error = error
        self._clock, self._fails, self._takes_s = clock, fails, takes_s

    async def __call__(self) -> str:
        self.calls.append("exchange")
        self._clock.advance(self._takes_s)
        if self._fails:
            self._fails -= 1
            raise self._error
        return "done"

    def again(self) -> None:
        self.calls.append("again")


async def test_what_was_cut_off_is_made_once_more() -> None:
    """One broken connection is no store that is away (§4.4)."""
    clock = FakeClock()
    exchange = _Exchange(clock, fails=1, takes_s=0.01)
    assert await twice(exchange, exchange.again, clock) == "done"
    assert exchange.calls == ["exchange", "again", "exchange"]


@pytest.mark.parametrize(("fails", "takes_s", "calls"), [(2, 0.01, 3), (1, SOON_S, 1)])
async def test_a_store_that_is_away_is_asked_no_more(
    fails: int, takes_s: float, calls: int
) -> None:
    """A second failure, or one after a long wait, is the store's absence."""
    clock = FakeClock()
    exchange = _Exchange(clock, fails, takes_s)
    with pytest.raises(StoreUnavailableError):
        await twice(exchange, exchange.again, clock)
    assert len(exchange.calls) == calls


async def test_an_answer_that_nobody_looked_for_is_no_verdict() -> None:
    """A busy process asks once more, however long it took to notice; only then is the store away."""
    clock = FakeClock()
    exchange = _Exchange(clock, fails=1, takes_s=9 * SOON_S, error=StoreLateError)
    assert await twice(exchange, exchange.again, clock) == "done"
    exchange = _Exchange(clock, fails=2, takes_s=9 * SOON_S, error=StoreLateError)
    with pytest.raises(StoreUnavailableError):
        await twice(exchange, exchange.again, clock)
