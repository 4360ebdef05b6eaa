"""`POST /v2/tickets`: a connection ticket for whoever shows a key (contract §1, §6)."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Refusal
from gateway.deps import GatewayDeps
from gateway.http_errors import REQUEST_ID_HEADER, error_response, refusal_response, request_id
from gateway.store.base import StoreUnavailableError
from seedance.protocol.errors import ErrorCode, SeedanceError

__all__ = ["ticket_routes"]

_RETRY_AFTER_MS = 1_000


def ticket_routes(deps: GatewayDeps) -> APIRouter:
    """The route that issues tickets."""
    router = APIRouter()
    tickets = deps.authenticator.tickets

    @router.post("/v2/tickets")
    async def issue(request: Request) -> Response:
        headers = {REQUEST_ID_HEADER: request_id(request.headers), "Cache-Control": "no-store"}
        principal = deps.authenticator.request(request.headers, request.query_params)
        if isinstance(principal, Refusal):
            return refusal_response(principal, headers)
        try:
            ticket = await tickets.issue(principal)
        except StoreUnavailableError:
            error = SeedanceError(
                ErrorCode.UNAVAILABLE,
                "tickets cannot be issued at the moment",
                retry_after_ms=_RETRY_AFTER_MS,
            )
            return error_response(error, headers)
        body = msgspec.json.encode({"ticket": ticket, "expires_in": int(tickets.ttl_s)})
        return Response(body, headers=headers, media_type="application/json")

    return router
