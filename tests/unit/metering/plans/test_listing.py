"""What a tenant is told about its plan."""

from __future__ import annotations

import json

import pytest

from metering.plans.listing import plan_json
from tests.support.plans import ALL_MODES, book

CHANGE_MS = 1_794_758_400_000  # 2026-11-16 00:00 in Shanghai
SECOND = """
      - version: "later"
        since: 2026-11-16
        prices:
          requests: {per_request: 1}
"""


@pytest.mark.parametrize(
    ("now_ms", "version"), [(0, None), (CHANGE_MS - 1, "2000"), (CHANGE_MS, "later")]
)
def test_version_of_today(now_ms: int, version: str | None) -> None:
    """Versions change at midnight of the plan's time zone."""
    told = json.loads(plan_json(book(more=SECOND, time_zone="Asia/Shanghai"), "acme", now_ms))
    assert told["version"] == version
    assert [v["until"] for v in told["versions"]] == ["2026-11-16", None]


def test_every_part_is_told() -> None:
    """Prices are decimal strings, without exponents."""
    (version,) = json.loads(plan_json(book(ALL_MODES), "acme", CHANGE_MS))["versions"]
    assert version["prices"] == {
        "connection_time": {"per_second": "0.0012"},
        "tokens": [
            {
                "models": ["*"],
                "input_per_1000": "0.08",
                "cached_per_1000": "0.02",
                "output_per_1000": "0.16",
            }
        ],
        "concurrency": [
            {"up_to": 50, "per_month": "299"},
            {"up_to": 200, "per_month": "899"},
            {"up_to": None, "per_month": "2999"},
        ],
        "requests": {"per_request": "0.001"},
        "time_bandwidth": {
            "alpha_per_second": "0.0001",
            "beta_per_byte": "0.000000002",
            "gamma_per_byte_ms": "0.000000000004",
        },
    }
