"""Months and days of a time zone as Unix milliseconds.

A local midnight that a change of clocks skips is the first moment of that day; one that comes twice
is its first coming. Hence months touch: none overlaps, none leaves a gap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo

__all__ = ["Month", "midnight_ms", "month_at"]

_MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
_MONTHS_A_YEAR = 12
# A day's first and last years that every zone's arithmetic stays within.
_YEAR_MIN, _YEAR_MAX = 1970, 9998


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A calendar month; `str` gives and `parse` takes `YYYY-MM`."""

    year: int
    month: int

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}"

    @staticmethod
    def parse(text: str) -> Month:
        """The month that the text names. Raises `ValueError`."""
        found = _MONTH.fullmatch(text)
        if not (found and text.isascii() and _YEAR_MIN <= int(found[1]) <= _YEAR_MAX):
            raise ValueError("a month is written YYYY-MM")
        return Month(int(found[1]), int(found[2]))

    def next(self) -> Month:
        """The month after."""
        return Month(self.year + self.month // _MONTHS_A_YEAR, self.month % _MONTHS_A_YEAR + 1)

    def bounds_ms(self, zone: ZoneInfo) -> tuple[int, int]:
        """Its first millisecond, and the first of the next month."""
        following = self.next()
        first = date(self.year, self.month, 1)
        return midnight_ms(first, zone), midnight_ms(date(following.year, following.month, 1), zone)


def midnight_ms(day: date, zone: ZoneInfo) -> int:
    """The first moment of a day, in Unix ms."""
    # fold=0 takes the first of two midnights. For one that is skipped it reads the clock as it went
    # before the change: the result is the very moment of the change.
    moment = datetime.combine(day, time(0), zone)
    return int(moment.astimezone(UTC).timestamp()) * 1000


def month_at(moment_ms: int, zone: ZoneInfo) -> Month:
    """The month that a moment lies in, in the zone."""
    moment = datetime.fromtimestamp(moment_ms // 1000, zone)
    return Month(moment.year, moment.month)
