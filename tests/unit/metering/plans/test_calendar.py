"""Months are exact where clocks change."""

from __future__ import annotations

from datetime import date
from zoneinfo import ZoneInfo

import pytest

from metering.plans.calendar import Month, midnight_ms, month_at

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("zone", "month", "hours"),
    [
        ("UTC", "2026-02", 28 * 24),
        ("UTC", "2028-02", 29 * 24),
        ("Asia/Shanghai", "2026-10", 31 * 24),
        ("Europe/Berlin", "2026-03", 31 * 24 - 1),
        ("Europe/Berlin", "2026-10", 31 * 24 + 1),
        ("America/New_York", "2026-11", 30 * 24 + 1),
        ("America/Havana", "2026-11", 30 * 24 + 1),  # the clock goes back at local midnight
    ],
)
def test_length_of_a_month(zone: str, month: str, hours: int) -> None:
    """A month has the hours that its clock shows."""
    begin, end = Month.parse(month).bounds_ms(ZoneInfo(zone))
    assert end - begin == hours * HOUR_MS


def test_midnight_that_does_not_exist() -> None:
    """Where a change of clocks skips midnight, the day begins at the change."""
    zone = ZoneInfo("America/Havana")  # 2026-03-08 00:00 became 01:00
    assert midnight_ms(date(2026, 3, 8), zone) == 1_772_946_000_000
    assert midnight_ms(date(2026, 3, 9), zone) - midnight_ms(date(2026, 3, 8), zone) == 23 * HOUR_MS


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/Havana", "Pacific/Apia"])
def test_months_touch(zone: str) -> None:
    """Over ten years each month begins where the one before ends, and holds its edges."""
    where, month = ZoneInfo(zone), Month(2005, 1)
    begin, _ = month.bounds_ms(where)
    while month < Month(2015, 1):
        first, end = month.bounds_ms(where)
        assert first == begin
        assert month_at(first, where) == month_at(end - 1, where) == month
        month, begin = month.next(), end


@pytest.mark.parametrize(
    "text", ["", "2026-13", "2026-1", "2026-00", "9999-01", "1969-12", "٢٠٢٦-01"]
)
def test_no_month(text: str) -> None:
    """What is no month is refused."""
    with pytest.raises(ValueError, match="YYYY-MM"):
        Month.parse(text)


def test_month_is_written_as_it_is_read() -> None:
    """`str` and `parse` are inverse, and December is followed by January."""
    assert str(Month.parse("2026-12").next()) == "2027-01"
