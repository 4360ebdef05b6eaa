"""What each way of charging would cost a month, and which one to take.

Worth of a way = its weighted scores over the best possible x the cheapest cost over its cost.
Scores are judgements of the ways, the same for every log; the costs are the log's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal

from metering.invoice.pricing import Segment, price_segment
from metering.plans.model import ANY_MODEL, PlanVersion, Prices, Rounding
from metering.roi.measure import MODEL, Traffic

__all__ = ["CRITERIA", "NOT_IN_PLAN", "SCORES", "SCORE_MAX", "WEIGHTS", "Option", "options_of"]

CRITERIA = ("operations", "recovery", "elasticity", "observability")
WEIGHTS: Mapping[str, Decimal] = dict(
    zip(CRITERIA, map(Decimal, ("0.35", "0.25", "0.20", "0.20")), strict=True)
)
SCORE_MAX = 5
# Of 5. Operations: how little there is to run and explain. Recovery: what a crash costs in exactness.
# Elasticity: whether the bill follows the load. Observability: whether a customer can check it.
SCORES: Mapping[str, tuple[int, int, int, int]] = {
    "connection_time": (4, 3, 4, 4),
    "tokens": (4, 5, 5, 5),
    "concurrency": (5, 4, 1, 3),
    "requests": (5, 4, 4, 3),
    "time_bandwidth": (2, 3, 4, 2),
}
MONTH_MS = 30 * 86_400_000
NOT_IN_PLAN = "the plan has no such price"
_CONTEXT = Context(prec=60)


@dataclass(frozen=True, slots=True)
class Option:
    """One way of charging. `missing` says what the plan or the log lacks for a cost."""

    mode: str
    month_cost: Decimal | None
    merit: Decimal
    worth: Decimal
    missing: str = ""


def options_of(
    traffic: Traffic, version: PlanVersion, rounding: Rounding, weights: Mapping[str, Decimal]
) -> list[Option]:
    """All ways, the one to take first; ways without a cost last."""
    found = [_option(mode, traffic, version, rounding, weights) for mode in SCORES]
    costs = [option.month_cost for option in found if option.month_cost is not None]
    cheapest = min(costs, default=Decimal(0))
    judged = [replace(option, worth=_worth(option, cheapest)) for option in found]
    return sorted(judged, key=lambda o: (o.month_cost is None, -o.worth, o.mode))


def _worth(option: Option, cheapest: Decimal) -> Decimal:
    if option.month_cost is None:
        return Decimal(0)
    if not option.month_cost:
        return option.merit
    return _CONTEXT.multiply(option.merit, _CONTEXT.divide(cheapest, option.month_cost))


def _option(
    mode: str,
    traffic: Traffic,
    version: PlanVersion,
    rounding: Rounding,
    weights: Mapping[str, Decimal],
) -> Option:
    scores = zip(CRITERIA, SCORES[mode], strict=True)
    total = sum((weights[name] * score for name, score in scores), Decimal(0))
    merit = _CONTEXT.divide(total, SCORE_MAX * sum(weights.values(), Decimal(0)))
    prices, missing = _only(mode, version.prices), _missing(mode, traffic)
    if prices is None:
        missing = NOT_IN_PLAN
    if missing or prices is None:
        return Option(mode, None, merit, Decimal(0), missing)
    alone = replace(version, prices=prices)
    # The tier of a peak is a month's fee whatever the log's length; the rest grows with time.
    whole = mode == "concurrency"
    segment = Segment(alone, 0, MONTH_MS, MONTH_MS)
    lines = price_segment(segment, traffic.quantities, rounding)
    cost = sum((line.exact for line in lines), Decimal(0))
    if not whole:
        cost = _CONTEXT.divide(_CONTEXT.multiply(cost, Decimal(MONTH_MS)), Decimal(traffic.span_ms))
    return Option(mode, cost, merit, Decimal(0))


def _missing(mode: str, traffic: Traffic) -> str:
    wants: Sequence[tuple[bool, str]] = {
        "connection_time": ((traffic.has_seconds, "durations"),),
        "tokens": ((traffic.has_tokens, "token counts"),),
        "concurrency": ((traffic.has_seconds, "durations"),),
        "requests": (),
        "time_bandwidth": ((traffic.has_seconds, "durations"), (traffic.has_bytes, "bytes")),
    }[mode]
    lacking = [name for there, name in wants if not there]
    return f"the log has no {lacking[0]}" if lacking else ""


def _only(mode: str, prices: Prices) -> Prices | None:
    """The plan with one way of charging, for the one model that a log is taken for."""
    if mode == "connection_time" and prices.connection_second is not None:
        return Prices(connection_second=prices.connection_second)
    if mode == "tokens" and prices.tokens:
        price = prices.of_model(ANY_MODEL) or prices.tokens[0]
        return Prices(tokens=(replace(price, models=(MODEL,)),))
    if mode == "concurrency" and prices.tiers:
        return Prices(tiers=prices.tiers)
    if mode == "requests" and prices.request is not None:
        return Prices(request=prices.request)
    if mode == "time_bandwidth" and prices.time_bandwidth is not None:
        return Prices(time_bandwidth=prices.time_bandwidth)
    return None
