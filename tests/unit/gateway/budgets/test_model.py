"""`gateway.budgets.model`: how budgets are written, and which period a moment lies in."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gateway.budgets.model import (
    Budget,
    Period,
    Tariff,
    Unit,
    period_bounds_ms,
    period_name,
    read_budgets,
)
from seedance.protocol.frames import Usage


def test_budgets_are_read() -> None:
    """Tenant, key, hard and soft; money in billionths."""
    assert read_budgets(
        "acme=100 tokens/month, acme/web=20.50 money/day soft 15,t=tokens/ever soft 9"
    ) == (
        Budget("acme", "", Unit.TOKENS, Period.MONTH, 100),
        Budget("acme", "web", Unit.MONEY, Period.DAY, 20_500_000_000, 15_000_000_000),
        Budget("t", "", Unit.TOKENS, Period.EVER, None, 9),
    )
    assert read_budgets("") == ()


@pytest.mark.parametrize(
    "text",
    [
        *("acme", "acme=", "acme=100", "acme=100 tokens", "=1 tokens/day", "acme=1 words/day"),
        *("acme=-1 tokens/day", "acme=1.5 tokens/day", "acme=tokens/day", "acme=1 tokens/year"),
        *("acme=1e3 tokens/day", "acme=9999999999999 money/day", "acme=1.0000000001 money/day"),
    ],
)
def test_what_is_no_budget_is_refused(text: str) -> None:
    """Half tokens, missing parts, or more than the store can count."""
    with pytest.raises(ValueError, match="budget"):
        read_budgets(text)


def test_a_budget_covers_its_key_or_all() -> None:
    """One without a key counts whatever key is shown."""
    every, web = read_budgets("acme=1 tokens/ever,acme/web=1 tokens/ever")
    assert every.covers("acme", "web")
    assert every.covers("acme", "")
    assert web.covers("acme", "web")
    assert not web.covers("acme", "")
    assert not every.covers("other", "web")


def test_months_and_days_are_the_plans() -> None:
    """In Shanghai it is December while UTC still has November."""
    moment_ms = int(datetime(2026, 11, 30, 17, tzinfo=UTC).timestamp() * 1000)
    shanghai = ZoneInfo("Asia/Shanghai")
    assert period_name(Period.MONTH, ZoneInfo("UTC"), moment_ms) == "2026-11"
    assert period_name(Period.MONTH, shanghai, moment_ms) == "2026-12"
    assert period_name(Period.DAY, shanghai, moment_ms) == "2026-12-01"
    assert period_name(Period.EVER, shanghai, moment_ms) == "ever"


def test_a_hold_covers_the_cost() -> None:
    """Whatever of a prompt turns out to be cached, it was held for."""
    for tariff in (Tariff(), Tariff(10, 2, 3), Tariff(2, 10, 3)):
        for cached in (0, 4, 7):
            assert tariff.cost(Usage(7, cached, 0)) <= tariff.held_for(7)
    assert Tariff(10, 2, 3).cost(Usage(7, 4, 5)) == 30 + 8 + 15


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/Sao_Paulo", "Africa/Cairo"])
@pytest.mark.parametrize("period", [Period.DAY, Period.MONTH])
def test_a_period_is_between_its_bounds(period: Period, zone: str) -> None:
    """Every moment lies in the period that is named after it, also where a change of clocks skips midnight."""
    for moment in (datetime(2018, 11, 4, 15, tzinfo=UTC), datetime(2026, 12, 31, 22, tzinfo=UTC)):
        name = period_name(period, ZoneInfo(zone), int(moment.timestamp()) * 1000)
        from_ms, until_ms = period_bounds_ms(period, name, ZoneInfo(zone))
        named = [
            period_name(period, ZoneInfo(zone), ms)
            for ms in (from_ms - 1, from_ms, until_ms - 1, until_ms)
        ]
        assert named[0] < named[1] == name == named[2] < named[3]
    assert period_bounds_ms(Period.EVER, "ever", ZoneInfo(zone)) == (0, 0)
