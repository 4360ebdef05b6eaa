"""The tenant's plan and invoices, asked of metering over gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.billing.usage import asking
from gateway.config import GatewaySettings
from seedance.protocol.request import bad_field
from seedance.v2 import metering_pb2 as pb

__all__ = ["invoice_of", "invoices_of", "plans_of"]

# What `format` may say: how metering calls it, and the media type of the answer.
_FORMS: Mapping[str, tuple[pb.InvoiceFormat, str]] = {
    "json": (pb.INVOICE_FORMAT_JSON, "application/json"),
    "csv": (pb.INVOICE_FORMAT_CSV, "text/csv; charset=utf-8"),
    "html": (pb.INVOICE_FORMAT_HTML, "text/html; charset=utf-8"),
}


async def plans_of(settings: GatewaySettings, tenant: str) -> dict[str, Any]:
    """The tenant's plan, in a list of at most one. Raises as `usage_of`."""
    async with asking(settings) as (stub, options):
        answer = await stub.GetPlan(pb.GetPlanRequest(tenant=tenant), **options)
    return {"object": "list", "data": [msgspec.Raw(answer.document)] if answer.found else []}


async def invoices_of(settings: GatewaySettings, tenant: str) -> dict[str, Any]:
    """The tenant's closed invoices and the draft of the running month. Raises as `usage_of`."""
    async with asking(settings) as (stub, options):
        answer = await stub.ListInvoices(pb.ListInvoicesRequest(tenant=tenant), **options)
    data = [
        {
            "object": "invoice",
            "number": head.number,
            "month": head.month,
            "state": "closed" if head.closed else "draft",
            "total": head.total,
            "currency": head.currency,
        }
        for head in answer.invoices
    ]
    return {"object": "list", "data": data}


async def invoice_of(
    settings: GatewaySettings, tenant: str, month: str, form: str
) -> tuple[bytes, str]:
    """One month's invoice and its media type; `form`: json, csv or html. Raises as `usage_of`."""
    if form not in _FORMS:
        raise bad_field("format", f"one of {', '.join(_FORMS)}")
    named, media_type = _FORMS[form]
    request = pb.GetInvoiceRequest(tenant=tenant, month=month, format=named)
    async with asking(settings) as (stub, options):
        answer = await stub.GetInvoice(request, **options)
    return answer.document, media_type
