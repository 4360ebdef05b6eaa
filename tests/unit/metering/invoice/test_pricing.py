"""Prices are applied exactly; only a line is rounded, once."""

from __future__ import annotations

from decimal import Decimal

import pytest

from metering.invoice.pricing import (
    Line,
    Segment,
    UnpricedError,
    money,
    plain,
    price_segment,
    round_money,
    segments,
    total_of,
)
from metering.invoice.quantities import (
    RTT_UNITS_PER_MS,
    ConnectionSums,
    ModelTokens,
    Quantities,
)
from metering.plans.model import PlanVersion, Rounding
from tests.support.plans import ALL_MODES, book

CENTS = Rounding("ROUND_HALF_UP", 2)
EVEN = Rounding("ROUND_HALF_EVEN", 2)


def version(prices: str = ALL_MODES) -> PlanVersion:
    return book(prices).plans["standard"][0]


def lines_of(used: Quantities, prices: str = ALL_MODES, until_ms: int = 100) -> dict[str, Line]:
    lines = price_segment(Segment(version(prices), 0, until_ms, 100), used, CENTS)
    return {line.part: line for line in lines}


def test_money_is_exact() -> None:
    """CASES 91: products of decimals keep every digit, sums of a million are exact."""
    assert plain(money(Decimal(1), Decimal("0.001615"))) == "0.001615"
    assert plain(money(Decimal(109_701), Decimal("0.00004"), Decimal(1000))) == "0.00438804"
    total = Decimal(0)
    for _ in range(10**6):
        total += Decimal("0.1")
    assert str(total) == "100000.0"
    assert money(Decimal(10**6), Decimal("0.1")) == total


def test_line_and_balance_round_alike() -> None:
    """CASES 93: what is taken is rounded once, and the rest is what is left of 100."""
    taken = round_money(Decimal("14.28444999"), CENTS)
    assert str(taken) == "14.28"
    assert str(Decimal("100.00") - taken) == "85.72"


@pytest.mark.parametrize(
    ("exact", "rounding", "rounded"),
    [
        ("0.125", CENTS, "0.13"),
        ("0.125", EVEN, "0.12"),
        ("-0.125", CENTS, "-0.13"),
        ("0.129", Rounding("ROUND_DOWN", 2), "0.12"),
        ("1234567.5", Rounding("ROUND_HALF_UP", 0), "1234568"),
    ],
)
def test_rounding_is_the_plans(exact: str, rounding: Rounding, rounded: str) -> None:
    """The plan says how halves go, and how many digits there are."""
    assert f"{round_money(Decimal(exact), rounding):f}" == rounded


def test_tokens() -> None:
    """Input, cached input and output have their prices for every 1,000."""
    lines = lines_of(Quantities(tokens=(ModelTokens("smol", 12_345, 345, 1_000),)))
    assert plain(lines["tokens.input"].exact) == "0.96"
    assert plain(lines["tokens.cached"].exact) == "0.0069"
    assert str(lines["tokens.cached"].amount) == "0.01"
    assert plain(lines["tokens.output"].exact) == "0.16"


def test_connection_seconds() -> None:
    """CASES 102: 5 s of CLOSE_WAIT are billed beside 60 s of ESTABLISHED: 65 x 0.0012."""
    line = lines_of(Quantities(connections=ConnectionSums(open_ms=65_000)))["connection_time"]
    assert (plain(line.quantity), plain(line.exact), str(line.amount)) == ("65", "0.078", "0.08")


def test_requests() -> None:
    """Each counts one."""
    assert plain(lines_of(Quantities(requests=4))["requests"].exact) == "0.004"


@pytest.mark.parametrize(
    ("peak", "price", "tier"),
    [
        (1, "299", "tier 1-50"),
        (50, "299", "tier 1-50"),
        (51, "899", "tier 51-200"),
        (200, "899", "tier 51-200"),
        (201, "2999", "tier 201 and more"),
        (0, "0", "No connection"),
    ],
)
def test_tiers_at_their_edges(peak: int, price: str, tier: str) -> None:
    """A month costs the tier of its peak; a month without connections costs nothing."""
    line = lines_of(Quantities(connections=ConnectionSums(peak=peak)))["concurrency"]
    assert plain(line.exact) == price
    assert tier in line.description


def test_tier_of_a_part_of_the_month() -> None:
    """A version that holds for a third of the month charges a third of its fee."""
    used = Quantities(connections=ConnectionSums(peak=1))
    segment = Segment(version(), 0, 1, 3)
    (line,) = [x for x in price_segment(segment, used, CENTS) if x.part == "concurrency"]
    assert plain(line.quantity) == "0.333333333333"
    assert str(line.amount) == "99.67"


def test_time_and_bandwidth() -> None:
    """Time is alpha x s + beta x bytes + gamma x RTT x bytes; 50 ms add 10 % to the bytes' price."""
    sums = ConnectionSums(open_ms=1_500, bytes=10**9, rtt_byte_units=10**9 * 50 * RTT_UNITS_PER_MS)
    lines = lines_of(Quantities(connections=sums))
    assert plain(lines["time_bandwidth.time"].exact) == "0.00015"
    assert plain(lines["time_bandwidth.bytes"].exact) == "2"
    assert plain(lines["time_bandwidth.round_trip"].exact) == "0.2"


def test_one_event_has_one_price() -> None:
    """CASES 96: a model that is named is not billed under `*` as well."""
    rule = "{{models: [{}], input_per_1000: 0, cached_per_1000: 0, output_per_1000: {}}}"
    rules = "".join(f"\n            - {rule.format(*r)}" for r in (('"*"', 5), ("aws", 7)))
    used = Quantities(tokens=(ModelTokens("aws", 0, 0, 1_000), ModelTokens("gcp", 0, 0, 1_000)))
    lines = price_segment(Segment(version(f"\n          tokens:{rules}"), 0, 1, 1), used, CENTS)
    charged = [(x.description, str(x.amount)) for x in lines if x.amount]
    assert charged == [("Output, aws", "7.00"), ("Output, gcp", "5.00")]


def test_total_is_the_sum_of_the_lines() -> None:
    """Three lines of 0.005 are three cents, as their reader would add."""
    used = Quantities(tokens=tuple(ModelTokens(m, 0, 0, 5) for m in "abc"))
    prices = """
          tokens: [{models: ["*"], input_per_1000: 0, cached_per_1000: 0, output_per_1000: 1}]"""
    lines = price_segment(Segment(version(prices), 0, 1, 1), used, CENTS)
    assert str(total_of(lines, CENTS)) == "0.03"


def test_what_has_no_price_is_not_given_away() -> None:
    """A model without a price, or a day without a version, stops the bill."""
    used = Quantities(tokens=(ModelTokens("big", 1, 0, 1),))
    prices = """
          tokens: [{models: [a], input_per_1000: 0, cached_per_1000: 0, output_per_1000: 1}]"""
    with pytest.raises(UnpricedError, match="no token price for model 'big'"):
        lines_of(used, prices)
    with pytest.raises(UnpricedError, match="no version"):
        price_segment(Segment(None, 0, 1, 1), used, CENTS)
    assert price_segment(Segment(None, 0, 1, 1), Quantities(), CENTS) == []


def test_segments_cover_the_month() -> None:
    """Where versions change the month is cut; days without one are a segment without one."""
    one, two = version(), version()
    found = segments([(5, 10, one), (10, 20, two), (40, None, one)], 7, 50)
    assert [(s.version is None, s.from_ms, s.until_ms) for s in found] == [
        (False, 7, 10),
        (False, 10, 20),
        (True, 20, 40),
        (False, 40, 50),
    ]
    assert {s.month_ms for s in found} == {43}
