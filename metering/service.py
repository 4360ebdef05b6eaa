"""The query service: translates between protobuf and the ledger."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import NoReturn

import grpc
import grpc.aio

from mesh.rpc.channel import MESH_SECRET_KEY
from metering.ledger import Ledger, LedgerUnavailableError
from metering.store.sql import ModelSum
from seedance.v2 import metering_pb2 as pb
from seedance.v2 import metering_pb2_grpc

__all__ = ["MeteringService"]

Context = grpc.aio.ServicerContext[pb.GetUsageRequest, pb.GetUsageResponse]


class MeteringService(metering_pb2_grpc.MeteringServicer):
    """Answers what a tenant used.

    `mesh_secret` not empty: only a caller that shows it is answered, for it names the tenant.
    """

    def __init__(self, ledger: Ledger, mesh_secret: str) -> None:
        self._ledger = ledger
        self._secret = mesh_secret.encode()

    async def GetUsage(  # noqa: N802 - the name in the schema
        self, request: pb.GetUsageRequest, context: Context
    ) -> pb.GetUsageResponse:
        """Sum a tenant's finished generations, in total and per model."""
        if not self._believed(context):
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, "the mesh's secret is missing")
        if not request.tenant:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "`tenant` must be given")
        if request.until_ms and request.until_ms < request.from_ms:
            await _refuse(
                context, grpc.StatusCode.INVALID_ARGUMENT, "`until_ms` must not precede `from_ms`"
            )
        try:
            sums = await self._ledger.usage(
                request.tenant, request.from_ms, request.until_ms or None
            )
        except LedgerUnavailableError:
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, "the ledger does not answer")
        return pb.GetUsageResponse(
            tenant=request.tenant, total=_total(sums), models=[_sum_to_pb(s) for s in sums]
        )

    def _believed(self, context: Context) -> bool:
        if not self._secret:
            return True
        shown = dict(context.invocation_metadata() or ()).get(MESH_SECRET_KEY, "")
        shown_bytes = shown if isinstance(shown, bytes) else shown.encode()
        return hmac.compare_digest(shown_bytes, self._secret)


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
