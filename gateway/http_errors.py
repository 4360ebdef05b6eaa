"""How a refusal looks on HTTP: a row of the contract's table in OpenAI's shape (§6)."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response

from gateway.auth import REFUSALS, Refusal
from seedance.protocol.errors import ErrorCode, SeedanceError

__all__ = [
    "REQUEST_ID_HEADER",
    "HttpError",
    "error_body",
    "error_response",
    "refusal_response",
    "request_id",
]

REQUEST_ID_HEADER = "X-Request-Id"
_REQUEST_ID = re.compile(r"[!-~]{1,128}", re.ASCII)


class HttpError(Exception):
    """A `bad_request` with a more exact status of HTTP's own; `message` is for the caller."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def request_id(headers: Headers) -> str:
    """The caller's request id when it is fit to be repeated in a header, else a new one."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else "req-" + secrets.token_hex(12)


def error_body(error: SeedanceError) -> dict[str, Any]:
    """OpenAI's error object; `param` names the field at fault."""
    return {
        "error": {
            "message": error.message,
            "type": error.row.openai_type,
            "param": error.field,
            "code": error.code.value,
        }
    }


def error_response(
    error: SeedanceError, headers: Mapping[str, str], *, status: int | None = None
) -> Response:
    """The error with its row's status, or with a more exact one of HTTP's own."""
    extra = dict(headers)
    if error.retry_after_ms is not None:
        extra["Retry-After"] = str(math.ceil(error.retry_after_ms / 1000))
        extra["Retry-After-Ms"] = str(error.retry_after_ms)  # what OpenAI's clients go by
    return Response(
        msgspec.json.encode(error_body(error)),
        status_code=status or error.row.http_status,
        headers=extra,
        media_type="application/json",
    )


def refusal_response(refusal: Refusal, headers: Mapping[str, str]) -> Response:
    """Why somebody may not connect."""
    row = REFUSALS[refusal]
    retry_after_ms = 1000 if row.error_code is ErrorCode.UNAVAILABLE else None
    error = SeedanceError(row.error_code, row.message, retry_after_ms=retry_after_ms)
    extra = {"WWW-Authenticate": "Bearer"} if row.http_status == 401 else {}  # noqa: PLR2004
    return error_response(error, {**headers, **extra}, status=row.http_status)
