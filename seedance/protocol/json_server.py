"""The server frames as JSON bodies, both ways: the shapes of the contract's second table (§3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from seedance.protocol.errors import CloseCode, ErrorCode, ProtocolFault
from seedance.protocol.frames import (
    SEQUENCED,
    Accepted,
    Checkpoint,
    Done,
    ErrorFrame,
    Flush,
    GoAway,
    Heartbeat,
    Ping,
    Pong,
    PressureFrame,
    Resumed,
    ServerFrame,
    SessionFrame,
    Timing,
    Token,
    TokenLogprob,
    Usage,
    WindowRange,
)

__all__ = ["server_body", "server_frame"]

# JSON has no infinity; this is what OpenAI's API says for "never".
_LOGPROB_MIN = -9999.0
_CODES = {code.value: code for code in ErrorCode}


def _given(**optional: Any) -> dict[str, Any]:
    return {name: value for name, value in optional.items() if value is not None}


# ---------------------------------------------------------------- frame to body


def _logprob_body(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token": entry.token,
        "bytes": entry.bytes,
        "logprob": max(entry.logprob, _LOGPROB_MIN),
    } | ({"top_logprobs": [_logprob_body(e) for e in entry.top]} if entry.top else {})


def _logprobs_body(entries: tuple[TokenLogprob, ...] | None) -> list[dict[str, Any]] | None:
    return None if entries is None else [_logprob_body(entry) for entry in entries]


def _session_body(frame: SessionFrame) -> dict[str, Any]:
    heartbeat, window = frame.heartbeat, frame.window
    return {
        "session": frame.session,
        "token": frame.token,
        "epoch": frame.epoch,
        "tenant": frame.tenant,
        "heartbeat": {
            "connection": heartbeat.connection,
            "session": heartbeat.session,
            "stream": heartbeat.stream,
        },
        "window": {"initial": window.initial, "min": window.min, "max": window.max},
        "resume_ttl": frame.resume_ttl,
        "mode": frame.mode,
        "server": frame.server,
        "gateways": frame.gateways,
    }


def _usage_body(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _timing_body(timing: Timing) -> dict[str, float]:
    return {name: round(getattr(timing, name), 3) for name in Timing.__dataclass_fields__}


def _done_body(frame: Done) -> dict[str, Any]:
    return {
        "id": frame.id,
        "finish_reason": frame.finish_reason,
        "usage": _usage_body(frame.usage),
        "timing": _timing_body(frame.timing),
    } | _given(text=frame.text, receipt=frame.receipt, logprobs=_logprobs_body(frame.logprobs))


def _error_body(frame: ErrorFrame) -> dict[str, Any]:
    return (
        _given(id=frame.id)
        | {"code": frame.code.value, "message": frame.message, "retryable": frame.retryable}
        | _given(
            retry_after_ms=frame.retry_after_ms,
            usage=None if frame.usage is None else _usage_body(frame.usage),
            field=frame.field,
        )
    )


def _sequenced_body(frame: Accepted | Token | Flush | Done | ErrorFrame) -> dict[str, Any]:
    match frame:
        case Token():
            return {
                "id": frame.id,
                "offset": frame.offset,
                "delta": frame.delta,
                "timestamp": frame.timestamp,
            } | _given(
                tokens=None if frame.tokens == 1 else frame.tokens,
                logprobs=_logprobs_body(frame.logprobs),
            )
        case Accepted():
            return {
                "id": frame.id,
                "instance": frame.instance,
                "adopted_batch_size": frame.adopted_batch_size,
                "token_quota": frame.token_quota,
            } | _given(traceparent=frame.traceparent)
        case Flush():
            return {"id": frame.id, "offset": frame.offset}
        case Done():
            return _done_body(frame)
        case ErrorFrame():
            return _error_body(frame)
        case _:
            assert_never(frame)


def _control_body(
    frame: SessionFrame | Resumed | Checkpoint | PressureFrame | Ping | Pong | GoAway,
) -> dict[str, Any]:
    match frame:
        case SessionFrame():
            return _session_body(frame)
        case Resumed():
            return {"from_seq": frame.from_seq} | _session_body(frame.session)
        case Checkpoint():
            return {
                "sequence_id": frame.sequence_id,
                "timestamp": frame.timestamp,
                "ack_level": frame.ack_level,
            }
        case PressureFrame():
            return {"level": frame.level, "reason": frame.reason}
        case Ping() | Pong():
            return _given(t=frame.t)
        case GoAway():
            return {"reason": frame.reason, "reconnect_ms": frame.reconnect_ms}
        case _:
            assert_never(frame)


_TYPE_OF: dict[type[ServerFrame], str] = {
    SessionFrame: "session",
    Resumed: "resumed",
    Accepted: "accepted",
    Token: "token",
    Flush: "flush",
    Done: "done",
    ErrorFrame: "error",
    Checkpoint: "checkpoint",
    PressureFrame: "pressure",
    Ping: "ping",
    Pong: "pong",
    GoAway: "goaway",
}


def server_body(frame: ServerFrame, seq: int | None = None) -> dict[str, Any]:
    """The JSON object of a server frame, absent fields left out."""
    body = {"type": _TYPE_OF[type(frame)]} | _given(seq=seq)
    if isinstance(frame, SEQUENCED):
        return body | _sequenced_body(frame)
    return body | _control_body(frame)


# ---------------------------------------------------------------- body to frame


def _logprobs(entries: list[dict[str, Any]] | None) -> tuple[TokenLogprob, ...] | None:
    if entries is None:
        return None
    return tuple(
        TokenLogprob(
            token=entry["token"],
            bytes=tuple(entry["bytes"]),
            logprob=entry["logprob"],
            top=_logprobs(entry.get("top_logprobs")) or (),
        )
        for entry in entries
    )


def _session(body: dict[str, Any]) -> SessionFrame:
    heartbeat, window = body["heartbeat"], body["window"]
    return SessionFrame(
        session=body["session"],
        token=body["token"],
        epoch=body["epoch"],
        tenant=body["tenant"],
        mode=body["mode"],
        server=body["server"],
        gateways=tuple(body["gateways"]),
        resume_ttl=body["resume_ttl"],
        heartbeat=Heartbeat(heartbeat["connection"], heartbeat["session"], heartbeat["stream"]),
        window=WindowRange(window["initial"], window["min"], window["max"]),
    )


def _usage(body: dict[str, Any]) -> Usage:
    return Usage(body["prompt_tokens"], body["cached_tokens"], body["completion_tokens"])


def _done(body: dict[str, Any]) -> Done:
    timing = body["timing"]
    return Done(
        id=body["id"],
        finish_reason=body["finish_reason"],
        usage=_usage(body["usage"]),
        timing=Timing(**{name: timing[name] for name in Timing.__dataclass_fields__}),
        text=body.get("text"),
        receipt=body.get("receipt"),
        logprobs=_logprobs(body.get("logprobs")),
    )


def _error(body: dict[str, Any]) -> ErrorFrame:
    usage = body.get("usage")
    return ErrorFrame(
        # A code of a newer server is known by its `retryable` alone.
        code=_CODES.get(body["code"], ErrorCode.INTERNAL),
        message=body["message"],
        retryable=body["retryable"],
        id=body.get("id"),
        retry_after_ms=body.get("retry_after_ms"),
        usage=None if usage is None else _usage(usage),
        field=body.get("field"),
    )


def _typed(value: Any, kind: type) -> Any:
    # What the receiver counts with; a wrong type elsewhere harms nobody but its reader.
    if type(value) is not kind:
        raise TypeError
    return value


def _token(body: dict[str, Any]) -> Token:
    return Token(
        id=_typed(body["id"], str),
        offset=_typed(body["offset"], int),
        delta=_typed(body["delta"], str),
        timestamp=body["timestamp"],
        tokens=body.get("tokens", 1),
        logprobs=_logprobs(body.get("logprobs")),
    )


def _accepted(body: dict[str, Any]) -> Accepted:
    return Accepted(
        id=body["id"],
        instance=body["instance"],
        adopted_batch_size=body["adopted_batch_size"],
        token_quota=body["token_quota"],
        traceparent=body.get("traceparent"),
    )


_FRAME_OF: dict[str, Callable[[dict[str, Any]], ServerFrame]] = {
    "token": _token,
    "accepted": _accepted,
    "flush": lambda body: Flush(body["id"], body["offset"]),
    "done": _done,
    "error": _error,
    "session": _session,
    "resumed": lambda body: Resumed(body["from_seq"], _session(body)),
    "checkpoint": lambda body: Checkpoint(
        body["sequence_id"], body["timestamp"], body["ack_level"]
    ),
    "pressure": lambda body: PressureFrame(body["level"], body["reason"]),
    "ping": lambda body: Ping(body.get("t")),
    "pong": lambda body: Pong(body.get("t")),
    "goaway": lambda body: GoAway(body["reason"], body["reconnect_ms"]),
}


def server_frame(body: dict[str, Any]) -> tuple[ServerFrame, int | None]:
    """The frame of a server's JSON object, and its `seq`; fields of a newer server are ignored.

    Raises `ProtocolFault` for an unknown type or a missing field.
    """
    try:
        seq = _typed(body["seq"], int) if "seq" in body else None
        return _FRAME_OF[body["type"]](body), seq
    except (KeyError, TypeError):
        raise ProtocolFault(CloseCode.PROTOCOL_ERROR, "not a frame that servers send") from None
