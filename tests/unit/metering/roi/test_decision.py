"""Costs of a log's month, and the way that is taken."""

from __future__ import annotations

from decimal import Decimal

from metering.plans.model import Rounding
from metering.roi.access_log import Access
from metering.roi.decision import SCORES, WEIGHTS, Option, options_of
from metering.roi.measure import measure
from tests.support.plans import ALL_MODES, TOKENS, book

CENTS = Rounding("ROUND_HALF_UP", 2)
MINUTES_A_MONTH = 30 * 24 * 60


def options(access: Access, prices: str = ALL_MODES, **weights: int) -> dict[str, Option]:
    traffic = measure([access])
    assert traffic is not None
    given = WEIGHTS | {name: Decimal(weight) for name, weight in weights.items()}
    found = options_of(traffic, book(prices).plans["standard"][0], CENTS, given)
    return {option.mode: option for option in found}


FULL = Access(59_999, 200, 1_000, 10_000, 50_000, 1_000, 0, 1_000)


def test_month_at_the_logs_rate() -> None:
    """One request a minute, 30 days long: each way's price by hand."""
    costs = {mode: option.month_cost for mode, option in options(FULL).items()}
    assert costs == {
        "connection_time": Decimal("0.012") * MINUTES_A_MONTH,
        "tokens": Decimal("0.24") * MINUTES_A_MONTH,
        "concurrency": Decimal(299),
        "requests": Decimal("0.001") * MINUTES_A_MONTH,
        "time_bandwidth": Decimal("0.0010022") * MINUTES_A_MONTH,
    }


def test_merit_is_the_weighted_share() -> None:
    """0.35 x 4 + 0.25 x 5 + 0.2 x 5 + 0.2 x 5 of 5."""
    assert options(FULL)["tokens"].merit == Decimal("0.93")
    only = options(FULL, operations=0, recovery=0, observability=0)
    assert {o.merit for o in only.values()} == {Decimal(s[2]) / 5 for s in SCORES.values()}


def test_cheap_and_good_comes_first() -> None:
    """Worth is merit times the cheapest cost over the way's own."""
    found = options(FULL)
    assert next(iter(found)) == "requests"
    assert found["requests"].worth == found["requests"].merit == Decimal("0.83")


def test_what_cannot_be_priced_is_last_and_says_why() -> None:
    """Neither a plan without a price nor a log without a figure makes a way free."""
    bare = Access(0, 200, None, None, None, None, None, None)
    missing = {mode: option.missing for mode, option in options(bare).items() if option.missing}
    assert missing == {
        "connection_time": "the log has no durations",
        "tokens": "the log has no token counts",
        "concurrency": "the log has no durations",
        "time_bandwidth": "the log has no durations",
    }
    assert next(iter(options(bare))) == "requests"
    assert options(FULL, TOKENS)["requests"].missing == "the plan has no such price"
