"""The tenant's usage, asked of metering over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from gateway.config import GatewaySettings
from gateway.http_errors import HttpError
from mesh.rpc.channel import MESH_SECRET_KEY, open_channel
from mesh.rpc.identity import identity_of
from seedance.protocol.errors import ErrorCode, SeedanceError, code_of_grpc_status
from seedance.v2 import metering_pb2 as pb
from seedance.v2 import metering_pb2_grpc

__all__ = ["asking", "usage_of"]

ASK_TIMEOUT_S = 5.0
_RETRY_AFTER_MS = 1_000
_NOT_FOUND = 404


async def usage_of(
    settings: GatewaySettings,
    tenant: str,
    from_ms: int = 0,
    until_ms: int = 0,
    *,
    per_minute: bool = False,
    key: str = "",
    ended_before_ms: int = 0,
) -> dict[str, Any]:
    """Sums over generations that began in [from, until), in total and per model; 0: no bound.

    `per_minute`: also for each minute that begins within, of at most a day. `key`: only what was asked with the key
    of this name; `ended_before_ms`: only what ended before. Raises `SeedanceError`
    `unavailable` when metering does not answer, `HttpError` when there is none.
    """
    request = pb.GetUsageRequest(
        tenant=tenant,
        from_ms=from_ms,
        until_ms=until_ms,
        per_minute=per_minute,
        key=key,
        ended_before_ms=ended_before_ms,
    )
    async with asking(settings) as (stub, options):
        answer = await stub.GetUsage(request, **options)
    return {
        "object": "usage",
        "tenant": answer.tenant,
        "total": _sum(answer.total),
        "models": [{"model": row.model} | _sum(row) for row in answer.models],
    } | ({"minutes": [_minute(row) for row in answer.minutes]} if per_minute else {})


@asynccontextmanager
async def asking(
    settings: GatewaySettings,
) -> AsyncIterator[tuple[metering_pb2_grpc.MeteringStub, dict[str, Any]]]:
    """Metering's stub and the options of a call.

    What goes wrong within becomes `SeedanceError`, or `HttpError` 404: the operator has not set up what
    was asked for, and asking again changes nothing.
    """
    if not settings.metering:
        raise HttpError(_NOT_FOUND, "this gateway knows no metering service")
    secret = settings.mesh_secret.get_secret_value()
    options = {
        "timeout": ASK_TIMEOUT_S,
        "metadata": ((MESH_SECRET_KEY, secret),) if secret else None,
    }
    # Asked now and then by people: a channel per question costs less than one kept for nothing.
    async with open_channel(settings.metering, identity_of(settings)) as channel:
        try:
            yield metering_pb2_grpc.MeteringStub(channel), options  # type: ignore[no-untyped-call]
        except grpc.aio.AioRpcError as error:
            raise _refusal(error) from None


def _refusal(error: grpc.aio.AioRpcError) -> SeedanceError | HttpError:
    code = code_of_grpc_status(error.code().name)
    if code is ErrorCode.BAD_REQUEST:
        return SeedanceError(code, error.details() or "metering refused the question")
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        # No plans, or none for what was used: the operator's to mend, the tenant's to know.
        return HttpError(_NOT_FOUND, error.details() or "there is no price")
    # A wrong secret between services is our fault, never the caller's.
    return SeedanceError(
        ErrorCode.UNAVAILABLE, "metering does not answer", retry_after_ms=_RETRY_AFTER_MS
    )


def _sum(row: pb.UsageSum) -> dict[str, int]:
    return {
        "requests": row.requests,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "completion_tokens": row.completion_tokens,
        "total_tokens": row.prompt_tokens + row.completion_tokens,
    }


def _minute(row: pb.MinuteSum) -> dict[str, Any]:
    return {"minute_ms": row.minute_ms, "model": row.sum.model} | _sum(row.sum)
