"""When the store's word about sessions counts (§4.8)."""

from __future__ import annotations

import pytest

from gateway.store.base import StoreUnavailableError
from gateway.store.belief import SETTLE_S, YOUNG_S, StoreBelief
from gateway.store.names import new_session_id
from tests.support.clock import FakeClock


def _doubted(belief: StoreBelief) -> bool:
    try:
        belief.check()
    except StoreUnavailableError:
        return True
    return False


def test_a_store_that_was_never_away_is_believed() -> None:
    """A gateway that starts has no reason to doubt."""
    belief = StoreBelief(FakeClock())
    belief.marked("one", fresh=False)
    assert not belief.answered()
    assert not _doubted(belief)


def test_a_store_that_is_back_is_doubted_for_the_settle_time() -> None:
    """Owners have `SETTLE_S` to write anew; the news is told once."""
    clock = FakeClock()
    belief = StoreBelief(clock)
    assert belief.failed()
    assert not belief.failed()
    assert belief.away
    assert belief.answered()
    assert not belief.answered()
    assert _doubted(belief)
    clock.advance(SETTLE_S)
    assert not _doubted(belief)


@pytest.mark.parametrize(
    ("known", "mark", "fresh", "doubted"),
    [
        ("one", "one", False, False),
        ("one", "two", False, True),
        ("", "two", False, False),
        ("", "two", True, True),
    ],
)
def test_a_store_that_lost_its_data_is_doubted(
    known: str, mark: str, fresh: bool, doubted: bool
) -> None:
    """A mark that changed or had to be made says that the data is gone."""
    belief = StoreBelief(FakeClock())
    if known:
        belief.marked(known, fresh=False)
    belief.marked(mark, fresh=fresh)
    assert _doubted(belief) is doubted


@pytest.mark.parametrize(
    ("age_s", "doubted"),
    [(0, True), (YOUNG_S - 0.1, True), (YOUNG_S, False), (1 - YOUNG_S, True), (-YOUNG_S, False)],
)
def test_a_young_session_is_not_known_to_be_gone(age_s: float, doubted: bool) -> None:
    """§4.8: its first commit may be on its way; a time that lies far ahead was made up."""
    clock = FakeClock()
    belief = StoreBelief(clock)
    belief.told_time(1_000_000)
    clock.advance(100)
    session = new_session_id(1_100_000 - round(age_s * 1000))
    try:
        belief.check_lacking(session)
    except StoreUnavailableError:
        assert doubted
    else:
        assert not doubted


def test_the_stores_clock_goes_before_the_hosts() -> None:
    """CASES 116: a host's wall clock counts only until the store was heard, and not if it is set then."""
    clock = FakeClock(50.0)
    belief = StoreBelief(clock)
    assert belief.now_ms() == 50_000
    belief.told_time(7_000_000)
    clock.advance(1.5)
    assert belief.now_ms() == 7_001_500
