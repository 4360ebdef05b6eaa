"""OpenAI's API on HTTP, and the tenant's usage (contract §6)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway.affinity import asks_canary
from gateway.auth import Principal, Refusal
from gateway.billing.plans import invoice_of, invoices_of, plans_of
from gateway.billing.usage import usage_of
from gateway.deps import GatewayDeps
from gateway.http_errors import (
    REQUEST_ID_HEADER,
    HttpError,
    error_response,
    refusal_response,
    request_id,
)
from gateway.openai.account import Caller
from gateway.openai.answers import AnswerShape, ChatShape, CompletionShape
from gateway.openai.choices import Choices
from gateway.openai.idempotency import Repeats, read_key
from gateway.openai.rate_headers import rate_headers
from gateway.openai.recording import IDEMPOTENCY_HEADER
from gateway.openai.run import CREDIT_TOKENS
from gateway.openai.schema import Asked, read_chat, read_completion
from gateway.openai.sse import GenerationResponse
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import bad_field

__all__ = ["BODY_BYTES_MAX", "openai_routes"]

# As a client message on a WebSocket (§1).
BODY_BYTES_MAX = 1024 * 1024
# A whole body over a slow line takes less; one that never comes holds a connection no longer.
BODY_WITHIN_S = 60.0
IDEMPOTENCY_LENGTH_MAX = 256
TRACEPARENT_HEADER = "traceparent"

# Unix milliseconds until the year 5138; a longer number is refused unread.
_MILLISECONDS_DIGITS_MAX = 14
_HOUR_MS = 3_600_000

Answer = Callable[[Request, Principal, dict[str, str]], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Face:
    """One of OpenAI's two ways to ask for text."""

    operation: str
    id_prefix: str
    read: Callable[[bytes, Mapping[str, str]], Asked]
    shape: Callable[[str, int, str], AnswerShape]


_CHAT = _Face("chat", "chatcmpl-", read_chat, ChatShape)
_COMPLETION = _Face("text_completion", "cmpl-", read_completion, CompletionShape)


def openai_routes(deps: GatewayDeps) -> APIRouter:
    """`/v1/chat/completions`, `/v1/completions`, `/v1/models`, and what the tenant owes."""
    router = APIRouter()
    repeats = Repeats(deps)

    @router.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _guarded(deps, request, _generate(deps, repeats, _CHAT))

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _guarded(deps, request, _generate(deps, repeats, _COMPLETION))

    @router.get("/v1/models")
    async def models(request: Request) -> Response:
        return await _guarded(deps, request, _models(deps))

    @router.get("/v1/models/{model:path}")
    async def model_by_name(request: Request, model: str) -> Response:
        return await _guarded(deps, request, _model(deps, model))

    @router.get("/v1/usage")
    async def usage(request: Request) -> Response:
        return await _guarded(deps, request, _usage(deps))

    @router.get("/v1/plans")
    async def plans(request: Request) -> Response:
        return await _guarded(deps, request, _plans(deps))

    @router.get("/v1/invoices")
    async def invoices(request: Request) -> Response:
        return await _guarded(deps, request, _invoices(deps))

    @router.get("/v1/invoices/{month}")
    async def invoice(request: Request, month: str) -> Response:
        return await _guarded(deps, request, _invoice(deps, month))

    return router


async def _guarded(deps: GatewayDeps, request: Request, answer: Answer) -> Response:
    """Answer who may ask; every error has OpenAI's shape, every answer a request id."""
    headers = {REQUEST_ID_HEADER: request_id(request.headers)}
    principal = deps.authenticator.request(request.headers, request.query_params)
    if isinstance(principal, Refusal):
        deps.metrics.rejected.labels(ErrorCode.UNAUTHORIZED.value).inc()
        if request.method == "POST":
            deps.usage.refused(deps.authenticator.tenant_shown(request.headers))
        return refusal_response(principal, headers)
    try:
        return await answer(request, principal, headers)
    except SeedanceError as error:
        deps.metrics.rejected.labels(error.code.value).inc()
        return error_response(error, headers)
    except HttpError as error:
        deps.metrics.rejected.labels(ErrorCode.BAD_REQUEST.value).inc()
        refused = SeedanceError(ErrorCode.BAD_REQUEST, error.message)
        return error_response(refused, headers, status=error.status)
    except ClientDisconnect:
        return Response(status_code=400)  # nobody is there to read it


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise HttpError(413, f"the body must be at most {BODY_BYTES_MAX} bytes")
    except TimeoutError:
        message = f"the body must arrive within {BODY_WITHIN_S:g} s"
        raise HttpError(408, message) from None
    return bytes(body)


def _json(body: Any, headers: Mapping[str, str]) -> Response:
    return Response(msgspec.json.encode(body), headers=dict(headers), media_type="application/json")


# ---------------------------------------------------------------- text


def _generate(deps: GatewayDeps, repeats: Repeats, face: _Face) -> Answer:
    async def answer(request: Request, principal: Principal, headers: dict[str, str]) -> Response:
        try:
            body = await _body(request)
            asked = face.read(body, request.headers)
        except SeedanceError as error:
            deps.usage.request(principal.tenant, error.code.value)
            raise
        except HttpError:
            deps.usage.request(principal.tenant, ErrorCode.BAD_REQUEST.value)
            raise
        name = request.headers.get(IDEMPOTENCY_HEADER, "")
        deps.usage.request(principal.tenant, idempotency_id=name[:IDEMPOTENCY_LENGTH_MAX])
        affinity = deps.affinity.of(request, principal, asked.user)
        if affinity.set_cookie:
            headers["set-cookie"] = affinity.set_cookie
        caller = Caller(
            tenant=principal.tenant,
            affinity=affinity.user,
            operation=face.operation,
            canary=asks_canary(request.headers),
            traceparent=request.headers.get(TRACEPARENT_HEADER),
            key=principal.key,
        )
        created_s = deps.clock.wall_ms() // 1000
        answer_id = face.id_prefix + secrets.token_hex(12)

        def shape(model: str) -> AnswerShape:
            return face.shape(answer_id, created_s, model)

        def run(name: str = "") -> GenerationResponse:
            credit = CREDIT_TOKENS if asked.stream else None
            named = replace(caller, run=name)
            try:
                choices = Choices(
                    deps, asked.requests, named, asked.choices, credit=credit, receipt=asked.receipt
                )
            finally:  # a refusal says it, too
                headers.update(rate_headers(deps.tenants.standings(principal.tenant)))
            return GenerationResponse(choices, asked, shape, headers)

        key = read_key(request.headers, principal.tenant, face.operation, body)
        return run() if key is None else repeats.response(key, run, headers)

    return answer


# ---------------------------------------------------------------- questions


def _model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "seedance"}


def _models(deps: GatewayDeps) -> Answer:
    async def answer(_: Request, principal: Principal, headers: dict[str, str]) -> Response:
        names = (n for n in deps.upstream.models() if deps.tenants.may_use(principal.tenant, n))
        data = [_model_object(name) for name in names]
        return _json({"object": "list", "data": data}, headers)

    return answer


def _model(deps: GatewayDeps, name: str) -> Answer:
    async def answer(_: Request, principal: Principal, headers: dict[str, str]) -> Response:
        mine = deps.tenants.may_use(principal.tenant, name)
        if not mine or name not in deps.upstream.models():
            raise SeedanceError(ErrorCode.MODEL_NOT_FOUND, "no such model is served", field="model")
        return _json(_model_object(name), headers)

    return answer


def _usage(deps: GatewayDeps) -> Answer:
    async def answer(request: Request, principal: Principal, headers: dict[str, str]) -> Response:
        from_ms, until_ms = (_milliseconds(request, name) for name in ("from_ms", "until_ms"))
        per = request.query_params.get("per", "")
        if per not in ("", "minute"):
            raise bad_field("per", "`minute`")
        if per:  # the last hour, unless it is said which
            until_ms = until_ms or deps.clock.wall_ms()
            from_ms = from_ms or max(0, until_ms - _HOUR_MS)
        answered = await usage_of(
            deps.settings, principal.tenant, from_ms, until_ms, per_minute=bool(per)
        )
        return _json(answered, headers)

    return answer


def _plans(deps: GatewayDeps) -> Answer:
    async def answer(_: Request, principal: Principal, headers: dict[str, str]) -> Response:
        return _json(await plans_of(deps.settings, principal.tenant), headers)

    return answer


def _invoices(deps: GatewayDeps) -> Answer:
    async def answer(_: Request, principal: Principal, headers: dict[str, str]) -> Response:
        return _json(await invoices_of(deps.settings, principal.tenant), headers)

    return answer


def _invoice(deps: GatewayDeps, month: str) -> Answer:
    async def answer(request: Request, principal: Principal, headers: dict[str, str]) -> Response:
        form = request.query_params.get("format", "json")
        document, media = await invoice_of(deps.settings, principal.tenant, month, form)
        return Response(document, headers=headers, media_type=media)

    return answer


def _milliseconds(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _MILLISECONDS_DIGITS_MAX):
        raise bad_field(name, "Unix milliseconds")
    return int(text)
