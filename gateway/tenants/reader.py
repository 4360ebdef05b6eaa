"""From a tenants file's text to a `TenantBook`, or to one line that says what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml

from gateway.budgets.model import Budget, read_amounts
from gateway.tenants.model import ApiKey, Limits, PriorityClass, Rate, Tenant, TenantBook
from gateway.tenants.origins import allowed_origins
from mesh.document import Document, DocumentError

__all__ = ["KEYS_MAX", "TENANTS_BYTES_MAX", "TENANT_NAME", "read_tenants"]

TENANTS_BYTES_MAX = 1024 * 1024
# Every key is compared with what a caller shows: that many take about a millisecond.
KEYS_MAX = 4096
TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

_FORMAT = 1
_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_RATES = ("requests_per_s", "tokens_per_s", "bytes_per_s")
_COUNTS = ("connections", "streams")
_RATE_MIN, _RATE_MAX = 0.001, 1e9
_WEIGHT_MIN, _WEIGHT_MAX = 0.01, 1000.0
_COUNT_MAX = 1_000_000


def read_tenants(text: bytes, name: str) -> TenantBook:
    """Read a tenants file; `name` stands in messages. Raises `DocumentError`."""
    if len(text) > TENANTS_BYTES_MAX:
        raise DocumentError(f"{name}:1: over {TENANTS_BYTES_MAX} bytes; drop keys nobody uses")
    doc = Document(text, name)
    top = doc.fields(doc.root, ("format", "tenants"))
    doc.count(top["format"], "format", _FORMAT, _FORMAT)
    keys: dict[bytes, ApiKey] = {}
    tenants = {
        tenant: _read_tenant(doc, tenant, node, keys)
        for tenant, node in doc.pairs(top["tenants"]).items()
    }
    if len(keys) > KEYS_MAX:
        doc.refuse(top["tenants"], f"over {KEYS_MAX} keys", "drop keys nobody uses")
    return TenantBook(tenants, tuple(keys.values()))


def _read_tenant(doc: Document, name: str, node: yaml.Node, keys: dict[bytes, ApiKey]) -> Tenant:
    if not TENANT_NAME.fullmatch(name):
        wrong = f"`{name}` is no tenant's name"
        doc.refuse(node, wrong, "write up to 64 letters, digits, `.`, `_` and `-`")
    known = ("keys", "models", "origins", "class", "weight", "limits", "budgets")
    fields = doc.fields(node, (), known)
    budgets = _read_budgets(doc, fields, name, "")
    for item in doc.items(fields["keys"]) if "keys" in fields else ():
        budgets += _read_key(doc, name, item, keys)
    weight = 1.0
    if "weight" in fields:
        weight = _read_number(doc, fields["weight"], "weight", _WEIGHT_MIN, _WEIGHT_MAX)
    return Tenant(
        name,
        models=frozenset(_read_texts(doc, fields, "models")),
        origins=_read_origins(doc, fields),
        priority=_read_class(doc, fields),
        weight=weight,
        limits=_read_limits(doc, fields["limits"]) if "limits" in fields else Limits(),
        budgets=tuple(budgets),
    )


def _read_key(
    doc: Document, tenant: str, node: yaml.Node, keys: dict[bytes, ApiKey]
) -> list[Budget]:
    """Take a key into `keys`; its budgets."""
    fields = doc.fields(node, ("sha256",), ("name", "budgets"))
    digest = doc.string(fields["sha256"])
    if not _SHA256_HEX.fullmatch(digest):
        remedy = "`seedance key` makes a key and prints its hash"
        doc.refuse(fields["sha256"], "`sha256` is not 64 hexadecimal digits", remedy)
    key = ApiKey(
        tenant, bytes.fromhex(digest), doc.string(fields["name"]) if "name" in fields else ""
    )
    if key.digest in keys:
        wrong = f"this key is one of `{keys[key.digest].tenant}` already"
        doc.refuse(fields["sha256"], wrong, "a key has one owner")
    keys[key.digest] = key
    return _read_budgets(doc, fields, tenant, key.label)


def _read_budgets(
    doc: Document, fields: Mapping[str, yaml.Node], tenant: str, key: str
) -> list[Budget]:
    found: list[Budget] = []
    for item in doc.items(fields["budgets"]) if "budgets" in fields else ():
        try:
            found += read_amounts(tenant, key, [doc.string(item)])
        except ValueError:
            remedy = "write AMOUNT tokens|money/month|day|ever [soft AMOUNT]"
            doc.refuse(item, "`budgets`: this is no budget", remedy)
    return found


def _read_texts(doc: Document, fields: Mapping[str, yaml.Node], name: str) -> list[str]:
    return [doc.string(item) for item in doc.items(fields[name])] if name in fields else []


def _read_origins(doc: Document, fields: Mapping[str, yaml.Node]) -> frozenset[str]:
    found: set[str] = set()
    for item in doc.items(fields["origins"]) if "origins" in fields else ():
        try:
            found |= allowed_origins((), (doc.string(item),))
        except ValueError as error:
            doc.refuse(item, f"`origins`: {error}", "write scheme and host, without a path")
    return frozenset(found)


def _read_class(doc: Document, fields: Mapping[str, yaml.Node]) -> PriorityClass:
    if "class" not in fields:
        return PriorityClass.STANDARD
    text = doc.string(fields["class"])
    try:
        return PriorityClass(text)
    except ValueError:
        known = ", ".join(one.value for one in PriorityClass)
        doc.refuse(fields["class"], f"unknown class `{text}`", f"known: {known}")


def _read_limits(doc: Document, node: yaml.Node) -> Limits:
    fields = doc.fields(node, (), (*_RATES, *_COUNTS))
    rates = (_read_rate(doc, fields[n], n) if n in fields else None for n in _RATES)
    counts = (doc.count(fields[n], n, 1, _COUNT_MAX) if n in fields else None for n in _COUNTS)
    requests, tokens, text = rates
    connections, streams = counts
    return Limits(requests, tokens, text, connections, streams)


def _read_rate(doc: Document, node: yaml.Node, name: str) -> Rate:
    """A number alone is its own burst: as much as comes in a second may come at once."""
    if isinstance(node, yaml.ScalarNode):
        base = _read_number(doc, node, name, _RATE_MIN, _RATE_MAX)
        return Rate(base, max(base, 1.0), base, base)
    fields = doc.fields(node, ("base",), ("burst", "floor", "ceiling"))
    values = {part: _read_number(doc, fields[part], part, _RATE_MIN, _RATE_MAX) for part in fields}
    base = values["base"]
    rate = Rate(
        base,
        values.get("burst", max(base, 1.0)),
        values.get("floor", base),
        values.get("ceiling", base),
    )
    if rate.burst < 1:
        doc.refuse(fields["burst"], "`burst` is below 1", "one must fit, or none ever comes")
    if not rate.floor <= base <= rate.ceiling:
        doc.refuse(node, f"`{name}`: `base` is not between `floor` and `ceiling`", "mend the order")
    return rate


def _read_number(
    doc: Document, node: yaml.Node, name: str, smallest: float, largest: float
) -> float:
    number = float(doc.decimal(node, name))
    if not smallest <= number <= largest:
        doc.refuse(node, f"`{name}` is out of range", f"it is between {smallest:g} and {largest:g}")
    return number
