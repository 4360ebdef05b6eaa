"""How far a tenant is from its limits, in OpenAI's headers."""

from __future__ import annotations

import pytest

from gateway.openai.rate_headers import RATE_HEADERS, duration, rate_headers
from gateway.tenants.allowance import Limit
from gateway.tenants.bucket import Standing


@pytest.mark.parametrize(
    ("milliseconds", "written"),
    [(0, "0s"), (20, "20ms"), (999, "999ms"), (1000, "1s"), (7660, "7.66s"), (360_000, "6m0s")],
)
def test_times_are_written_as_openai_writes_them(milliseconds: int, written: str) -> None:
    """The forms that its documentation shows."""
    assert duration(milliseconds) == written


def test_only_limits_that_there_are_have_headers() -> None:
    """None without a limit; three for each, all of them in the document."""
    assert rate_headers({}) == {}
    requests, tokens = Standing(10, 4, 90_500), Standing(1000, 0, 15)
    headers = rate_headers({Limit.REQUESTS: requests, Limit.TOKENS: tokens})
    assert {name.lower(): value for name, value in headers.items()} == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "1m30.5s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "15ms",
    }
    assert set(headers) == set(RATE_HEADERS)
