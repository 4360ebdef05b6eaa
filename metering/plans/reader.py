"""From a plan file's text to a `PlanBook`, or to one line that says what is wrong with it."""

from __future__ import annotations

import decimal
import hashlib
import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml

from mesh.document import Document, DocumentError
from metering.plans.model import (
    PlanBook,
    PlanVersion,
    Prices,
    Rounding,
    Tier,
    TimeBandwidthPrice,
    TokenPrice,
)

__all__ = ["PLAN_BYTES_MAX", "read_plans"]

PLAN_BYTES_MAX = 1024 * 1024
FORMAT = 1
DIGITS_MAX = 6
_TIER_MAX = 10**9
# The share that each millisecond of round trip adds to a byte's price, unless gamma is given.
_RTT_WEIGHT_PER_MS = Decimal("0.002")
_EXACT = decimal.Context(prec=80)
_ROUNDING = {
    "half_up": decimal.ROUND_HALF_UP,
    "half_even": decimal.ROUND_HALF_EVEN,
    "down": decimal.ROUND_DOWN,
}
_PARTS = ("connection_time", "tokens", "concurrency", "requests", "time_bandwidth")


def read_plans(text: bytes, name: str) -> PlanBook:
    """Read a plan file; `name` stands in messages. Raises `DocumentError`."""
    if len(text) > PLAN_BYTES_MAX:
        raise DocumentError(f"{name}:1: over {PLAN_BYTES_MAX} bytes; split the file")
    doc = Document(text, name)
    top = doc.fields(
        doc.root,
        ("format", "currency", "time_zone", "rounding", "default_plan", "plans"),
        ("tenants",),
    )
    doc.count(top["format"], "format", FORMAT, FORMAT)
    plans = {n: _read_versions(doc, node) for n, node in doc.pairs(top["plans"]).items()}
    return PlanBook(
        currency=_read_currency(doc, top["currency"]),
        zone=_read_zone(doc, top["time_zone"]),
        rounding=_read_rounding(doc, top["rounding"]),
        default_plan=_read_plan_name(doc, top["default_plan"], plans),
        tenants={
            tenant: _read_plan_name(doc, node, plans)
            for tenant, node in (doc.pairs(top["tenants"]) if "tenants" in top else {}).items()
        },
        plans=plans,
        digest=hashlib.sha256(text).hexdigest(),
        text=text,
    )


def _read_currency(doc: Document, node: yaml.Node) -> str:
    currency = doc.string(node)
    if not re.fullmatch("[A-Z]{3}", currency):
        doc.refuse(node, "`currency` is no ISO 4217 code", "write three capitals, such as CNY")
    return currency


def _read_zone(doc: Document, node: yaml.Node) -> ZoneInfo:
    zone = doc.string(node)
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        remedy = "write a name such as Asia/Shanghai (the system's tzdata must be installed)"
        doc.refuse(node, f"`time_zone` {zone!r} is not known", remedy)


def _read_rounding(doc: Document, node: yaml.Node) -> Rounding:
    fields = doc.fields(node, ("mode", "digits"))
    mode = doc.string(fields["mode"])
    if mode not in _ROUNDING:
        doc.refuse(fields["mode"], f"unknown mode `{mode}`", f"known: {', '.join(_ROUNDING)}")
    return Rounding(_ROUNDING[mode], doc.count(fields["digits"], "digits", 0, DIGITS_MAX))


def _read_plan_name(doc: Document, node: yaml.Node, plans: Mapping[str, object]) -> str:
    plan = doc.string(node)
    if plan not in plans:
        doc.refuse(node, f"no plan is called `{plan}`", f"there are: {', '.join(plans)}")
    return plan


def _read_versions(doc: Document, node: yaml.Node) -> tuple[PlanVersion, ...]:
    versions: list[PlanVersion] = []
    for item in doc.items(node):
        fields = doc.fields(item, ("version", "since", "prices"), ("until",))
        version = PlanVersion(
            doc.string(fields["version"]),
            doc.day(fields["since"], "since"),
            doc.day(fields["until"], "until") if "until" in fields else None,
            _read_prices(doc, fields["prices"]),
        )
        if version.until is not None and version.until <= version.since:
            doc.refuse(
                fields["until"], "`until` does not follow `since`", "it is the first day after"
            )
        _refuse_overlap(doc, item, version, versions)
        versions.append(version)
    return tuple(sorted(versions, key=lambda v: v.since))


def _refuse_overlap(
    doc: Document, node: yaml.Node, version: PlanVersion, others: list[PlanVersion]
) -> None:
    for other in others:
        if other.name == version.name:
            doc.refuse(node, f"version `{other.name}` stands twice", "give each its own name")
        begins_before_end = version.since < (other.until or date.max)
        if begins_before_end and other.since < (version.until or date.max):
            wrong = f"version `{version.name}` overlaps version `{other.name}`"
            doc.refuse(node, wrong, "let `until` of the earlier be `since` of the later")


def _read_prices(doc: Document, node: yaml.Node) -> Prices:
    fields = doc.fields(node, (), _PARTS)
    if not fields:
        doc.refuse(node, "`prices` is empty", f"add one of {', '.join(_PARTS)}")
    second = request = None
    if "connection_time" in fields:
        second = _read_one(doc, fields["connection_time"], "per_second")
    if "requests" in fields:
        request = _read_one(doc, fields["requests"], "per_request")
    return Prices(
        connection_second=second,
        tokens=_read_tokens(doc, fields["tokens"]) if "tokens" in fields else (),
        tiers=_read_tiers(doc, fields["concurrency"]) if "concurrency" in fields else (),
        request=request,
        time_bandwidth=_read_bandwidth(doc, fields["time_bandwidth"])
        if "time_bandwidth" in fields
        else None,
    )


def _read_one(doc: Document, node: yaml.Node, name: str) -> Decimal:
    return doc.decimal(doc.fields(node, (name,))[name], name)


def _read_tokens(doc: Document, node: yaml.Node) -> tuple[TokenPrice, ...]:
    names = ("input_per_1000", "cached_per_1000", "output_per_1000")
    seen: dict[str, int] = {}
    prices = []
    for item in doc.items(node):
        fields = doc.fields(item, ("models", *names))
        models = []
        for model_node in doc.items(fields["models"]):
            model = doc.string(model_node)
            if model in seen:
                wrong = f"model `{model}` has a price in line {seen[model]} already"
                doc.refuse(model_node, wrong, "name each model once, or it would be billed twice")
            seen[model] = doc.line(model_node)
            models.append(model)
        prices.append(TokenPrice(tuple(models), *(doc.decimal(fields[n], n) for n in names)))
    return tuple(prices)


def _read_tiers(doc: Document, node: yaml.Node) -> tuple[Tier, ...]:
    tiers: list[Tier] = []
    next_from = 1
    for item in doc.items(doc.fields(node, ("tiers",))["tiers"]):
        fields = doc.fields(item, ("from", "per_month"), ("to",))
        first = doc.count(fields["from"], "from", 1, _TIER_MAX)
        if tiers and tiers[-1].up_to is None:
            doc.refuse(item, "a tier follows the one without `to`", "put the open tier last")
        if first != next_from:
            wrong = "tiers overlap" if first < next_from else "tiers leave a gap"
            doc.refuse(fields["from"], wrong, f"this one begins at {next_from}")
        last = doc.count(fields["to"], "to", first, _TIER_MAX) if "to" in fields else None
        tiers.append(Tier(last, doc.decimal(fields["per_month"], "per_month")))
        next_from = (last or 0) + 1
    if tiers[-1].up_to is not None:
        doc.refuse(node, "the last tier has an end", "leave its `to` out, or more would be free")
    return tuple(tiers)


def _read_bandwidth(doc: Document, node: yaml.Node) -> TimeBandwidthPrice:
    names = ("alpha_per_second", "beta_per_byte")
    fields = doc.fields(node, names, ("gamma_per_byte_ms",))
    alpha, beta = (doc.decimal(fields[name], name) for name in names)
    if "gamma_per_byte_ms" in fields:
        gamma = doc.decimal(fields["gamma_per_byte_ms"], "gamma_per_byte_ms")
    else:
        gamma = _EXACT.multiply(beta, _RTT_WEIGHT_PER_MS)
    return TimeBandwidthPrice(alpha, beta, gamma)
