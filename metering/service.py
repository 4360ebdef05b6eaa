"""The query service: translates between protobuf and the ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio

from metering.invoice.desk import BillingDesk, NoPlansError
from metering.invoice.pricing import UnpricedError
from metering.ledger import Ledger, LedgerUnavailableError
from metering.plans.calendar import Month
from metering.store.sql import MinuteSum, ModelSum
from seedance.v2 import metering_pb2 as pb
from seedance.v2 import metering_pb2_grpc

__all__ = ["MeteringService"]

# Sums per minute are told for at most a day at once.
MINUTES_WITHIN_MS = 86_400_000

# One servicer's methods have each their own request and response: here none is touched.
Context = grpc.aio.ServicerContext[Any, Any]

_FORMS = {
    pb.INVOICE_FORMAT_UNSPECIFIED: "json",
    pb.INVOICE_FORMAT_JSON: "json",
    pb.INVOICE_FORMAT_CSV: "csv",
    pb.INVOICE_FORMAT_HTML: "html",
}


class MeteringService(metering_pb2_grpc.MeteringServicer):
    """Answers what a tenant used and what it costs.

    The caller names the tenant: its server lets members of the mesh in alone (`mesh.rpc.secret`).
    """

    def __init__(self, ledger: Ledger, desk: BillingDesk) -> None:
        self._ledger = ledger
        self._desk = desk

    async def GetUsage(  # noqa: N802 - the name in the schema
        self, request: pb.GetUsageRequest, context: Context
    ) -> pb.GetUsageResponse:
        """Sum a tenant's finished generations, in total and per model."""
        await _named(request.tenant, context)
        if request.until_ms and request.until_ms < request.from_ms:
            await _refuse_field(context, "`until_ms` must not precede `from_ms`")
        async with _answering(context):
            sums = await self._ledger.usage(
                request.tenant,
                request.from_ms,
                request.until_ms or None,
                request.key,
                request.ended_before_ms or None,
            )
            minutes = await self._minutes(request, context) if request.per_minute else []
        return pb.GetUsageResponse(
            tenant=request.tenant,
            total=_total(sums),
            models=[_sum_to_pb(s) for s in sums],
            minutes=[pb.MinuteSum(minute_ms=m.minute_ms, sum=_sum_to_pb(m)) for m in minutes],
        )

    async def _minutes(self, request: pb.GetUsageRequest, context: Context) -> list[MinuteSum]:
        if not 0 < request.until_ms - request.from_ms <= MINUTES_WITHIN_MS:
            await _refuse_field(context, "`from_ms` and `until_ms` must be at most a day apart")
        return await self._ledger.minutes(request.tenant, request.from_ms, request.until_ms)

    async def GetPlan(  # noqa: N802 - the name in the schema
        self, request: pb.GetPlanRequest, context: Context
    ) -> pb.GetPlanResponse:
        """Tell what a tenant's usage costs."""
        await _named(request.tenant, context)
        async with _answering(context):
            plan = await self._desk.plan(request.tenant)
        return pb.GetPlanResponse(found=plan is not None, document=plan or b"")

    async def ListInvoices(  # noqa: N802 - the name in the schema
        self, request: pb.ListInvoicesRequest, context: Context
    ) -> pb.ListInvoicesResponse:
        """Tell a tenant's closed invoices and the running month's draft."""
        await _named(request.tenant, context)
        async with _answering(context):
            heads = await self._desk.invoices(request.tenant)
        return pb.ListInvoicesResponse(
            invoices=[
                pb.InvoiceHead(
                    number=head.number,
                    month=head.month,
                    closed=head.closed,
                    total=head.total,
                    currency=head.currency,
                )
                for head in heads
            ]
        )

    async def GetInvoice(  # noqa: N802 - the name in the schema
        self, request: pb.GetInvoiceRequest, context: Context
    ) -> pb.GetInvoiceResponse:
        """Write one month's invoice."""
        await _named(request.tenant, context)
        try:
            month = Month.parse(request.month)
        except ValueError as error:
            await _refuse_field(context, f"`month`: {error}")
        if request.format not in _FORMS:
            await _refuse_field(context, "`format` is not known")
        async with _answering(context):
            document = await self._desk.invoice(request.tenant, month, _FORMS[request.format])
        return pb.GetInvoiceResponse(document=document)


async def _named(tenant: str, context: Context) -> None:
    if not tenant:
        await _refuse_field(context, "`tenant` must be given")


@asynccontextmanager
async def _answering(context: Context) -> AsyncIterator[None]:
    """What the ledger and the prices may refuse, as gRPC says it."""
    try:
        yield
    except LedgerUnavailableError:
        await _refuse(context, grpc.StatusCode.UNAVAILABLE, "the ledger does not answer")
    except UnpricedError as error:
        await _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
    except NoPlansError:
        await _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "there are no price plans")


async def _refuse_field(context: Context, message: str) -> NoReturn:
    await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, message)


async def _refuse(context: Context, status: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(status, message)
    raise AssertionError("abort raises")


def _sum_to_pb(row: ModelSum) -> pb.UsageSum:
    return pb.UsageSum(
        model=row.model,
        requests=row.requests,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
    )


def _total(rows: Sequence[ModelSum]) -> pb.UsageSum:
    return pb.UsageSum(
        requests=sum(r.requests for r in rows),
        prompt_tokens=sum(r.prompt_tokens for r in rows),
        cached_tokens=sum(r.cached_tokens for r in rows),
        completion_tokens=sum(r.completion_tokens for r in rows),
    )
