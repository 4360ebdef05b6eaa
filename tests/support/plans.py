"""Plan files for tests."""

from __future__ import annotations

from metering.plans.model import PlanBook
from metering.plans.reader import read_plans

__all__ = ["ALL_MODES", "book", "plan_text"]

TOKENS = """
          tokens:
            - models: ["*"]
              input_per_1000: "0.08"
              cached_per_1000: "0.02"
              output_per_1000: "0.16"
"""

ALL_MODES = (
    TOKENS
    + """
          connection_time: {per_second: "0.0012"}
          concurrency:
            tiers:
              - {from: 1, to: 50, per_month: 299}
              - {from: 51, to: 200, per_month: 899}
              - {from: 201, per_month: 2999}
          requests: {per_request: "0.001"}
          time_bandwidth: {alpha_per_second: "0.0001", beta_per_byte: "0.000000002"}
"""
)


def plan_text(
    prices: str = TOKENS,
    *,
    time_zone: str = "UTC",
    mode: str = "half_up",
    digits: int = 2,
    more: str = "",
) -> bytes:
    """A plan file with one plan that has held since 2000; `more`: further versions of it."""
    until = "\n        until: 2026-11-16" if more else ""
    return f"""\
format: 1
currency: CNY
time_zone: {time_zone}
rounding: {{mode: {mode}, digits: {digits}}}
default_plan: standard
plans:
    standard:
      - version: "2000"
        since: 2000-01-01{until}
        prices:{prices}{more}
""".encode()


def book(prices: str = TOKENS, **changes: str) -> PlanBook:
    """The same, read."""
    return read_plans(plan_text(prices, **changes), "plans.yaml")
