"""What a budget is, and how it is written down.

Amounts are whole numbers everywhere below: tokens, or billionths of the plan's currency (`MONEY_ATOMS`), so that
sums are exact in Python, in Lua and in the store alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from zoneinfo import ZoneInfo

from seedance.protocol.frames import Usage

__all__ = [
    "AMOUNT_MAX",
    "MONEY_ATOMS",
    "Budget",
    "Period",
    "Tariff",
    "Unit",
    "midnight_ms",
    "period_bounds_ms",
    "period_name",
    "read_amounts",
    "read_budgets",
]

MONEY_ATOMS = 10**9
# What a double holds exactly: the store's scripts count with nothing else.
AMOUNT_MAX = 2**53
_AMOUNT = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
_TERMS = re.compile(
    rf"(?:(?P<hard>{_AMOUNT}) )?(?P<unit>tokens|money)/(?P<period>month|day|ever)(?: soft (?P<soft>{_AMOUNT}))?"
)


class Unit(Enum):
    """What is counted: prompt and output tokens alike, or their price by the tenant's plan."""

    TOKENS = "tokens"
    MONEY = "money"


class Period(Enum):
    """When the count begins anew, by the plan's time zone."""

    MONTH = "month"
    DAY = "day"
    EVER = "ever"


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `hard` in a period, and a word at `soft`; `key` empty: all keys of the tenant together."""

    tenant: str
    key: str
    unit: Unit
    period: Period
    hard: int | None
    soft: int | None = None

    def covers(self, tenant: str, key: str) -> bool:
        """Whether what this tenant does with this key counts."""
        return self.tenant == tenant and self.key in ("", key)


@dataclass(frozen=True, slots=True)
class Tariff:
    """What one token costs, in the budget's amounts."""

    prompt: int = 1
    cached: int = 1
    output: int = 1

    def held_for(self, prompt_tokens: int) -> int:
        """The most that a prompt may turn out to cost: how much of it was cached is told at the end."""
        return prompt_tokens * max(self.prompt, self.cached)

    def cost(self, usage: Usage) -> int:
        """What a stream costs."""
        fresh = (usage.prompt_tokens - usage.cached_tokens) * self.prompt
        return fresh + usage.cached_tokens * self.cached + usage.completion_tokens * self.output


def period_name(period: Period, zone: ZoneInfo, moment_ms: int) -> str:
    """Which period a moment lies in: `2026-11`, `2026-11-30` or `ever`."""
    day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment_ms)).astimezone(zone)
    match period:
        case Period.MONTH:
            return f"{day:%Y-%m}"
        case Period.DAY:
            return f"{day:%Y-%m-%d}"
        case Period.EVER:
            return "ever"


def period_bounds_ms(period: Period, name: str, zone: ZoneInfo) -> tuple[int, int]:
    """The moments [from, until) of the period that `period_name` called so; 0 and 0: for ever."""
    if period is Period.EVER:
        return 0, 0
    if period is Period.DAY:
        first = date.fromisoformat(name)
        following = first + timedelta(days=1)
    else:
        first = date.fromisoformat(f"{name}-01")
        following = (first + timedelta(days=31)).replace(day=1)
    return midnight_ms(first, zone), midnight_ms(following, zone)


def midnight_ms(day: date, zone: ZoneInfo) -> int:
    """The first moment of a day, Unix ms; where a change of clocks skips it, the change."""
    return int(datetime.combine(day, time(0), zone).timestamp()) * 1000


def read_budgets(text: str) -> tuple[Budget, ...]:
    """The budgets of a comma list `TENANT[/KEY]=TERMS`. Raises `ValueError` that says which and why."""
    found: list[Budget] = []
    for item in filter(None, map(str.strip, text.split(","))):
        who, _, terms = item.partition("=")
        tenant, _, key = who.partition("/")
        found += read_amounts(tenant, key, [terms])
    return tuple(found)


def read_amounts(tenant: str, key: str, terms: Iterable[str]) -> list[Budget]:
    """Budgets of one tenant or key, each written as `100 tokens/month`, `20.50 money/day soft 15`, or only `tokens/ever soft 90`.

    Raises `ValueError`.
    """
    found = []
    for text in terms:
        match = _TERMS.fullmatch(text)
        if match is None or not (match["hard"] or match["soft"]) or not tenant:
            raise ValueError(
                f"budget {text!r}: write AMOUNT tokens|money/month|day|ever [soft AMOUNT]"
            )
        unit = Unit(match["unit"])
        hard, soft = (_atoms(match[name], unit, text) for name in ("hard", "soft"))
        found.append(Budget(tenant, key, unit, Period(match["period"]), hard, soft))
    return found


def _atoms(text: str | None, unit: Unit, whole: str) -> int | None:
    if text is None:
        return None
    amount = Decimal(text) * (MONEY_ATOMS if unit is Unit.MONEY else 1)
    if amount != int(amount) or amount > AMOUNT_MAX:
        raise ValueError(f"budget {whole!r}: {text} is not a whole number of tokens, or too much")
    return int(amount)
