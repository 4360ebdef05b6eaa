"""The one table of errors and close codes (contract §3), and the exception that carries them.

Every error that may reach a peer is a row here: what it is called on the WebSocket, which HTTP
status and gRPC status it has, and whether the same request may succeed later. The layers translate
by looking a row up; none of them decides for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

__all__ = [
    "CLOSE_RETRY_NEVER",
    "CLOSE_RETRY_RESUME",
    "ERRORS",
    "CloseCode",
    "ErrorCode",
    "ErrorRow",
    "ProtocolFault",
    "SeedanceError",
    "code_of_grpc_status",
]


class ErrorCode(StrEnum):
    """`error.code` on the wire."""

    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    MODEL_NOT_FOUND = "model_not_found"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    OVERLOADED = "overloaded"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXCEEDED = "quota_exceeded"
    UNKNOWN_STREAM = "unknown_stream"
    RESUME_GAP = "resume_gap"
    SESSION_EXPIRED = "session_expired"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


class CloseCode(IntEnum):
    """WebSocket close codes that the contract names."""

    NORMAL = 1000
    GOING_AWAY = 1001
    UNSUPPORTED_DATA = 1003
    INVALID_PAYLOAD = 1007
    MESSAGE_TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    TRY_AGAIN_LATER = 1013
    PROTOCOL_ERROR = 4400
    UNAUTHORIZED = 4401
    FORBIDDEN = 4403
    TIMEOUT = 4408
    TAKEN_OVER = 4409
    SESSION_UNKNOWN = 4410
    TOO_MANY_CONNECTIONS = 4429


# After these a client reconnects and resumes (1006 is the transport's word for "no close frame").
CLOSE_RETRY_RESUME = frozenset({1001, 1006, 1011, 1012, 1013, 4408, 4429})
# After these a client gives up and tells its user.
CLOSE_RETRY_NEVER = frozenset({4401, 4403, 4409})


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One row: how an error looks on each way into the mesh.

    `openai_type` is the `error.type` of OpenAI's error object; `grpc_status` the status name.
    """

    code: ErrorCode
    http_status: int
    grpc_status: str
    retryable: bool
    openai_type: str


ERRORS: dict[ErrorCode, ErrorRow] = {
    row.code: row
    for row in (
        ErrorRow(ErrorCode.BAD_REQUEST, 400, "INVALID_ARGUMENT", False, "invalid_request_error"),
        ErrorRow(ErrorCode.UNAUTHORIZED, 401, "UNAUTHENTICATED", False, "authentication_error"),
        ErrorRow(ErrorCode.MODEL_NOT_FOUND, 404, "NOT_FOUND", False, "invalid_request_error"),
        ErrorRow(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED, 400, "OUT_OF_RANGE", False, "invalid_request_error"
        ),
        ErrorRow(ErrorCode.OVERLOADED, 503, "RESOURCE_EXHAUSTED", True, "server_error"),
        ErrorRow(ErrorCode.RATE_LIMITED, 429, "ABORTED", True, "rate_limit_error"),
        ErrorRow(ErrorCode.QUOTA_EXCEEDED, 429, "PERMISSION_DENIED", False, "insufficient_quota"),
        ErrorRow(
            ErrorCode.UNKNOWN_STREAM, 404, "FAILED_PRECONDITION", False, "invalid_request_error"
        ),
        ErrorRow(ErrorCode.RESUME_GAP, 409, "DATA_LOSS", False, "invalid_request_error"),
        ErrorRow(ErrorCode.SESSION_EXPIRED, 410, "CANCELLED", False, "invalid_request_error"),
        ErrorRow(ErrorCode.UNAVAILABLE, 503, "UNAVAILABLE", True, "server_error"),
        ErrorRow(ErrorCode.INTERNAL, 500, "INTERNAL", False, "server_error"),
    )
}

_CODE_OF_GRPC = {row.grpc_status: row.code for row in ERRORS.values()}
# What a transport itself may say, beside the statuses of the table.
_CODE_OF_GRPC |= {
    "DEADLINE_EXCEEDED": ErrorCode.UNAVAILABLE,
    "UNKNOWN": ErrorCode.INTERNAL,
    "UNIMPLEMENTED": ErrorCode.INTERNAL,
    "ALREADY_EXISTS": ErrorCode.BAD_REQUEST,
}


def code_of_grpc_status(status_name: str) -> ErrorCode:
    """The row's code for a gRPC status name such as `UNAVAILABLE`; `internal` for one unknown."""
    return _CODE_OF_GRPC.get(status_name, ErrorCode.INTERNAL)


class SeedanceError(Exception):
    """An error of the table, on its way to a peer.

    `message` is for a person on the other side: it names the field and the allowed range and holds
    nothing internal. `field` is the path of the field at fault, such as `messages[0].role`.
    `retry_after_ms` is given only for retryable codes. `stream_id` names the stream it concerns,
    where that is known; `of_generate`, that it refuses a `generate` that could not be read.
    """

    of_generate = False

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str | None = None,
        retry_after_ms: int | None = None,
        stream_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.retry_after_ms = retry_after_ms
        self.stream_id = stream_id

    @property
    def row(self) -> ErrorRow:
        """This error's row of the table."""
        return ERRORS[self.code]

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.row.retryable


class ProtocolFault(Exception):  # noqa: N818 - the peer is at fault, and the connection ends
    """What came is no message of the contract at all: the connection closes with `close_code`.

    `message` is the close reason: for a person on the other side, at most 123 bytes of UTF-8.
    """

    def __init__(self, close_code: CloseCode, message: str) -> None:
        super().__init__(message)
        self.close_code = close_code
        self.message = message
