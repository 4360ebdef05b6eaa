"""What a plan file means once it was read: plain values, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from zoneinfo import ZoneInfo

__all__ = [
    "ANY_MODEL",
    "PlanBook",
    "PlanVersion",
    "Prices",
    "Rounding",
    "Tier",
    "TimeBandwidthPrice",
    "TokenPrice",
]

ANY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Prices per 1,000 tokens of the models named; `*` is every model that no other price names."""

    models: tuple[str, ...]
    input_per_1000: Decimal
    cached_per_1000: Decimal
    output_per_1000: Decimal


@dataclass(frozen=True, slots=True)
class Tier:
    """The fee of a month whose peak of concurrent connections is at most `up_to` (None: any)."""

    up_to: int | None
    per_month: Decimal


@dataclass(frozen=True, slots=True)
class TimeBandwidthPrice:
    """alpha x seconds + beta x bytes + gamma x round trip in ms x bytes, for each connection."""

    alpha_per_second: Decimal
    beta_per_byte: Decimal
    gamma_per_byte_ms: Decimal


@dataclass(frozen=True, slots=True)
class Prices:
    """What one version of a plan charges for. A part that is None or empty is free."""

    connection_second: Decimal | None = None
    tokens: tuple[TokenPrice, ...] = ()
    tiers: tuple[Tier, ...] = ()
    request: Decimal | None = None
    time_bandwidth: TimeBandwidthPrice | None = None

    def of_model(self, model: str) -> TokenPrice | None:
        """The one price of a model's tokens: the one that names it, else that of `*`.

        Never two: a plan file that names a model twice is refused (CASES 96).
        """
        named = [price for price in self.tokens if model in price.models]
        others = [price for price in self.tokens if ANY_MODEL in price.models]
        return next(iter(named or others), None)


@dataclass(frozen=True, slots=True)
class PlanVersion:
    """Prices from the local midnight that begins `since` until the one that begins `until`."""

    name: str
    since: date
    until: date | None
    prices: Prices


@dataclass(frozen=True, slots=True)
class Rounding:
    """How money becomes payable: each line to `digits` after the point. `mode`: decimal's name."""

    mode: str
    digits: int


@dataclass(frozen=True, slots=True)
class PlanBook:
    """A plan file: who has which plan, and every plan's versions in order."""

    currency: str
    zone: ZoneInfo
    rounding: Rounding
    default_plan: str
    tenants: Mapping[str, str]
    plans: Mapping[str, tuple[PlanVersion, ...]]
    digest: str
    text: bytes

    def plan_of(self, tenant: str) -> str:
        """The name of the tenant's plan."""
        return self.tenants.get(tenant, self.default_plan)
