"""The OpenAPI document of everything that a gateway answers over HTTP (contract §6).

Written by hand, since the bodies are read by hand; a test holds its paths against the routes, and the
fuzzer holds its schemas against the answers.
"""

from __future__ import annotations

from typing import Any

import seedance
from gateway.openai.document_bodies import SCHEMAS, reference
from gateway.openai.rate_headers import RATE_HEADERS
from seedance.protocol.request import LIMITS

__all__ = ["openapi_document"]

Json = dict[str, Any]


def _body(schema: str, media: str = "application/json") -> Json:
    return {media: {"schema": reference(schema)}}


def _header(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _query(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _path(name: str, description: str, schema: Json) -> Json:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
    }


_SEEN = {
    "X-Request-Id": {"description": "The caller's, or a new one.", "schema": {"type": "string"}}
}
_ADOPTED = {
    name: {"description": description, "schema": {"type": "integer"}}
    for name, description in (
        ("X-Adopted-Batch-Size", "How many sequences the instance computes together."),
        ("X-Token-Quota", "How many tokens the answer may have."),
    )
}
_LATER = {
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}},
    "Retry-After-Ms": {"description": "Milliseconds.", "schema": {"type": "integer"}},
}
_RATES = {
    name: {"description": description, "schema": {"type": "string"}}
    for name, description in RATE_HEADERS.items()
}
_ERRORS: Json = {
    "4XX": {
        "description": "Refused: `error.param` names the field at fault.",
        "headers": {**_SEEN, **_LATER, **_RATES},
        "content": _body("Error"),
    },
    "503": {
        "description": "Busy, or what answers is away: the same request may do well later.",
        "headers": {**_SEEN, **_LATER},
        "content": _body("Error"),
    },
}
_SECURED: Json = {"security": [{"key": []}, {}]}


def _operation(summary: str, content: Json, *, headers: Json | None = None, **more: Any) -> Json:
    """An operation that asks who calls, and answers errors in OpenAI's shape."""
    answer = {"description": "OK", "headers": {**_SEEN, **(headers or {})}, "content": content}
    return {"summary": summary, "responses": {"200": answer, **_ERRORS}, **_SECURED, **more}


def _open_operation(summary: str, content: Json, **responses: Json) -> Json:
    """An operation that anybody may ask for."""
    answers = {"200": {"description": "OK", "content": content}, **responses}
    return {"summary": summary, "responses": answers, "security": []}


_COUNT_HEADER: Json = {"type": "integer", "minimum": 0, "maximum": LIMITS.tokens_max}
_WISHES = [
    _header("X-Expected-Tokens", "How long the answer will be, about.", _COUNT_HEADER),
    _header("X-Max-Latency", "Milliseconds between tokens at most, if possible.", _COUNT_HEADER),
    _header("X-Canary", "`true`: choose among canary instances.", {"type": "string"}),
    _header(
        "Idempotency-Key",
        "A repeated request joins or replays the first one and is billed once.",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
    ),
]


def _generation(summary: str, request: str, answer: str) -> Json:
    # OpenAPI 3.1 has no word for the items of a stream.
    events: Json = {"text/event-stream": {}}
    asked = {"required": True, "content": _body(request)}
    content = {**_body(answer), **events}
    return _operation(
        summary, content, headers={**_ADOPTED, **_RATES}, requestBody=asked, parameters=_WISHES
    )


_MILLISECONDS: Json = {"type": "integer", "minimum": 0, "maximum": 10**14 - 1}
_HTML: Json = {"text/html": {"schema": {"type": "string"}}}
_INVOICE_FORMS: Json = {
    "application/json": {"schema": {"type": "object"}},
    "text/csv": {"schema": {"type": "string"}},
    **_HTML,
}

_PATHS: Json = {
    "/v1/chat/completions": {
        "post": _generation("Answer a conversation", "ChatRequest", "ChatCompletion")
    },
    "/v1/completions": {"post": _generation("Continue a text", "CompletionRequest", "Completion")},
    "/v1/models": {"get": _operation("Every model that is served", _body("ModelList"))},
    "/v1/models/{model}": {
        "get": _operation(
            "One model",
            _body("Model"),
            parameters=[_path("model", "Its name or alias.", {"type": "string", "minLength": 1})],
        )
    },
    "/v1/usage": {
        "get": _operation(
            "What the tenant used",
            _body("Usage"),
            parameters=[
                _query("from_ms", "Unix milliseconds; 0: no bound.", _MILLISECONDS),
                _query("until_ms", "Unix milliseconds, excluded; 0: no bound.", _MILLISECONDS),
                _query("per", "Also for each minute.", {"type": "string", "enum": ["minute"]}),
            ],
        )
    },
    "/v1/receipts/key": {
        "get": _operation("The keys that receipts are checked with", _body("List"))
    },
    "/v1/plans": {"get": _operation("The tenant's price plan, if it has one", _body("List"))},
    "/v1/invoices": {"get": _operation("The tenant's invoices, and the draft", _body("List"))},
    "/v1/invoices/{month}": {
        "get": _operation(
            "One month's invoice",
            _INVOICE_FORMS,
            parameters=[
                _path(
                    "month", "As in 2026-11.", {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"}
                ),
                _query("format", "Of the document.", {"enum": ["json", "csv", "html"]}),
            ],
        )
    },
    "/v2/tickets": {
        "post": _operation("A ticket that opens one WebSocket", _body("Ticket")),
    },
    "/healthz": {"get": _open_operation("The process lives", _body("Status"))},
    "/readyz": {
        "get": _open_operation(
            "It can serve",
            _body("Status"),
            **{
                "503": {
                    "description": "Not now.",
                    "headers": {"Retry-After": _LATER["Retry-After"]},
                    "content": _body("Status"),
                }
            },
        )
    },
    "/metrics": {
        "get": _open_operation("Prometheus", {"text/plain": {"schema": {"type": "string"}}})
    },
    "/openapi.json": {
        "get": _open_operation(
            "This document", {"application/json": {"schema": {"type": "object"}}}
        )
    },
    "/": {"get": _open_operation("The browser client", _HTML)},
}


def openapi_document() -> Json:
    """The document, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Seedance gateway",
            "version": seedance.__version__,
            "description": "A language model's tokens, over OpenAI's API. The WebSocket endpoint"
            " `/v2/infer` is described by the contract, docs/protocol.md.",
        },
        "paths": _PATHS,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A tenant's API key. Without one: the local mesh's own tenant.",
                }
            },
        },
    }
