"""What a tenant is told about its plan."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from metering.plans.model import PlanBook, PlanVersion, Prices

__all__ = ["plan_json"]


def plan_json(book: PlanBook, tenant: str, now_ms: int) -> bytes:
    """The tenant's plan: every version, and which of them holds now. Prices are decimal strings."""
    name = book.plan_of(tenant)
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(book.zone).date()
    versions = book.plans[name]
    now = [v.name for v in versions if v.since <= today and (v.until is None or today < v.until)]
    told = {
        "object": "plan",
        "plan": name,
        "currency": book.currency,
        "time_zone": book.zone.key,
        "version": now[0] if now else None,
        "versions": [_version(version) for version in versions],
    }
    return json.dumps(told, ensure_ascii=False).encode()


def _version(version: PlanVersion) -> dict[str, Any]:
    return {
        "version": version.name,
        "since": version.since.isoformat(),
        "until": None if version.until is None else version.until.isoformat(),
        "prices": _prices(version.prices),
    }


def _prices(prices: Prices) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if prices.connection_second is not None:
        told["connection_time"] = {"per_second": f"{prices.connection_second:f}"}
    if prices.tokens:
        names = ("input_per_1000", "cached_per_1000", "output_per_1000")
        told["tokens"] = [
            {"models": list(price.models)} | {n: f"{getattr(price, n):f}" for n in names}
            for price in prices.tokens
        ]
    if prices.tiers:
        told["concurrency"] = [
            {"up_to": tier.up_to, "per_month": f"{tier.per_month:f}"} for tier in prices.tiers
        ]
    if prices.request is not None:
        told["requests"] = {"per_request": f"{prices.request:f}"}
    if prices.time_bandwidth is not None:
        bandwidth = prices.time_bandwidth
        names = ("alpha_per_second", "beta_per_byte", "gamma_per_byte_ms")
        told["time_bandwidth"] = {n: f"{getattr(bandwidth, n):f}" for n in names}
    return told
