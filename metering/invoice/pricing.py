"""Quantities times prices: an invoice's lines. Pure, and exact until the one rounding of a line.

`exact` of a line is quantity x price with every digit; `amount` is that, rounded as the plan says.
A total is the sum of amounts, so that what a customer adds up is what is asked (CASES 91, 93).
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from metering.invoice.quantities import RTT_UNITS_PER_MS, ModelTokens, Quantities
from metering.plans.model import PlanVersion, Prices, Rounding, TimeBandwidthPrice

__all__ = [
    "Line",
    "Segment",
    "UnpricedError",
    "money",
    "plain",
    "price_segment",
    "round_money",
    "segments",
    "total_of",
]

# Enough for every product that a ledger's counts and a plan's prices can make: nothing is lost.
_EXACT = decimal.Context(prec=80, traps=[decimal.InvalidOperation, decimal.Inexact])
# A share of a month and an average round trip may have no end of digits: they are kept to these.
_QUOTIENT_PLACES = Decimal("1E-12")
_QUOTIENT = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_EVEN)
_ONE = Decimal(1)
_THOUSAND = Decimal(1000)


class UnpricedError(Exception):
    """Something was used that the plan has no price for; nothing is billed until it has."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `quantity` `unit`s at `price` for every `per` of them."""

    part: str
    description: str
    version: str
    quantity: Decimal
    unit: str
    price: Decimal
    per: Decimal
    exact: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the month in which one version of the plan holds (None: none does)."""

    version: PlanVersion | None
    from_ms: int
    until_ms: int
    month_ms: int


def segments(
    versions: Sequence[tuple[int, int | None, PlanVersion]], from_ms: int, until_ms: int
) -> list[Segment]:
    """Cut [from, until) where versions change; `versions`: begin, end, version, in order."""
    month_ms = until_ms - from_ms
    found: list[Segment] = []
    at = from_ms
    for begin, end, version in versions:
        first, last = max(begin, at), until_ms if end is None else min(end, until_ms)
        if first >= last:
            continue
        if first > at:
            found.append(Segment(None, at, first, month_ms))
        found.append(Segment(version, first, last, month_ms))
        at = last
    if at < until_ms:
        found.append(Segment(None, at, until_ms, month_ms))
    return found


def price_segment(segment: Segment, used: Quantities, rounding: Rounding) -> list[Line]:
    """The lines of what was used in a segment. Raises `UnpricedError`."""
    version = segment.version
    if version is None:
        if used.nothing():
            return []
        raise UnpricedError("there is usage on days for which the plan has no version")
    parts = _charges(version.prices, used, segment)
    return [_line(version.name, charge, rounding) for charge in parts]


def total_of(lines: Iterable[Line], rounding: Rounding) -> Decimal:
    """The sum of rounded amounts."""
    total = round_money(Decimal(0), rounding)
    for line in lines:
        total = _EXACT.add(total, line.amount)
    return total


def round_money(exact: Decimal, rounding: Rounding) -> Decimal:
    """An amount as it can be paid."""
    places = _ONE.scaleb(-rounding.digits)
    return exact.quantize(places, rounding.mode, decimal.Context(prec=80))


def money(units: Decimal, price: Decimal, per: Decimal = _ONE) -> Decimal:
    """Units x price / per, exactly; `per` is a power of ten."""
    return _EXACT.divide(_EXACT.multiply(units, price), per)


def plain(number: Decimal) -> str:
    """The number's digits, without an exponent and without zeros that say nothing."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# Part, description, quantity, unit, price, per.
_Charge = tuple[str, str, Decimal, str, Decimal, Decimal]


def _charges(prices: Prices, used: Quantities, segment: Segment) -> Iterator[_Charge]:
    connections = used.connections
    if prices.connection_second is not None:
        seconds = _seconds(connections.open_ms)
        price = prices.connection_second
        yield "connection_time", "Connections open", seconds, "s", price, _ONE
    if prices.tokens:
        for tokens in used.tokens:
            yield from _token_charges(prices, tokens)
    if prices.tiers:
        yield _tier_charge(prices, used, segment)
    if prices.request is not None:
        count = Decimal(used.requests)
        yield "requests", "Requests", count, "requests", prices.request, _ONE
    if prices.time_bandwidth is not None:
        yield from _bandwidth_charges(prices.time_bandwidth, used)


def _token_charges(prices: Prices, tokens: ModelTokens) -> Iterator[_Charge]:
    price = prices.of_model(tokens.model)
    if price is None:
        raise UnpricedError(f"the plan has no token price for model {tokens.model!r}")
    for part, name, count, per_1000 in (
        ("tokens.input", "Input", tokens.prompt - tokens.cached, price.input_per_1000),
        ("tokens.cached", "Cached input", tokens.cached, price.cached_per_1000),
        ("tokens.output", "Output", tokens.output, price.output_per_1000),
    ):
        yield part, f"{name}, {tokens.model}", Decimal(count), "tokens", per_1000, _THOUSAND


def _tier_charge(prices: Prices, used: Quantities, segment: Segment) -> _Charge:
    peak = used.connections.peak
    share = _quotient(segment.until_ms - segment.from_ms, segment.month_ms)
    part = "concurrency"
    if not peak:
        return part, "No connection", Decimal(0), "month", Decimal(0), _ONE
    first = 1
    for tier in prices.tiers:
        if tier.up_to is None or peak <= tier.up_to:
            named = f"{first}-{tier.up_to}" if tier.up_to else f"{first} and more"
            text = f"Peak of {peak}, tier {named}"
            return part, text, share, "month", tier.per_month, _ONE
        first = tier.up_to + 1
    raise AssertionError("the last tier is open")


def _bandwidth_charges(price: TimeBandwidthPrice, used: Quantities) -> Iterator[_Charge]:
    sums = used.connections
    part = "time_bandwidth"
    seconds = _seconds(sums.open_ms)
    yield f"{part}.time", "Time connected", seconds, "s", price.alpha_per_second, _ONE
    count = Decimal(sums.bytes)
    yield f"{part}.bytes", "Bytes both ways", count, "bytes", price.beta_per_byte, _ONE
    weighted = _quotient(sums.rtt_byte_units, RTT_UNITS_PER_MS)
    text = "Bytes × average round trip"
    yield f"{part}.round_trip", text, weighted, "byte-ms", price.gamma_per_byte_ms, _ONE


def _line(version: str, charge: _Charge, rounding: Rounding) -> Line:
    part, description, quantity, unit, price, per = charge
    exact = money(quantity, price, per)
    amount = round_money(exact, rounding)
    return Line(part, description, version, quantity, unit, price, per, exact, amount)


def _seconds(milliseconds: int) -> Decimal:
    return Decimal(milliseconds).scaleb(-3)


def _quotient(number: int, divisor: int) -> Decimal:
    exact = _QUOTIENT.divide(Decimal(number), Decimal(divisor))
    return exact.quantize(_QUOTIENT_PLACES, context=_QUOTIENT).normalize(_QUOTIENT)
