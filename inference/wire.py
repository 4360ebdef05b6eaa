"""Between the engine's types and protobuf."""

from __future__ import annotations

from dataclasses import asdict

from inference.engine.answer import FinishReason
from inference.engine.messages import (
    Accepted,
    Done,
    Failed,
    Pressure,
    PressureLevel,
    Tokens,
)
from inference.engine.plan import Sampled
from inference.outbox import OutboxBatch
from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import Usage
from seedance.v2 import inference_pb2 as pb

__all__ = ["error_to_pb", "response_to_pb"]

_FINISH = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}
_PRESSURE = {
    PressureLevel.NONE: pb.PRESSURE_LEVEL_NONE,
    PressureLevel.THROTTLE: pb.PRESSURE_LEVEL_THROTTLE,
    PressureLevel.PAUSE: pb.PRESSURE_LEVEL_PAUSE,
}


def error_to_pb(error: SeedanceError, usage: Usage | None) -> pb.Error:
    """An error frame."""
    return pb.Error(
        code=error.code.value,
        message=error.message,
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms or 0,
        usage=None if usage is None else _usage(usage),
        field=error.field or "",
    )


def response_to_pb(
    batch: OutboxBatch, pressure: Pressure | None, *, instance: str, model: str, now: float
) -> pb.StreamResponse:
    """One message; `now` (the engine's clock) is when its tokens are handed to the transport."""
    output = batch.output
    response = pb.StreamResponse()
    if pressure is not None:
        response.frames.append(pb.ServerFrame(pressure=_pressure(pressure)))
    for accepted in output.accepted:
        response.frames.append(_accepted(accepted, instance, model))
    if output.tokens:
        _fill_columns(response.tokens, output.tokens, now)
        response.tokens.timestamp_ms = batch.wall_ms
    for end in output.ends:
        response.frames.append(_end(end, now))
    return response


def _fill_columns(columns: pb.TokenColumns, entries: list[Tokens], now: float) -> None:
    # Each column is filled in one call: assigning element by element costs ten times as much.
    for entry in entries:
        if entry.marks.first_sent is None:
            entry.marks.first_sent = now
    pieces = [entry.piece for entry in entries]
    columns.stream_ids.extend([entry.stream.stream for entry in entries])
    columns.token_counts.extend([len(piece.ids) for piece in pieces])
    columns.byte_lengths.extend([len(piece.text) for piece in pieces])
    columns.offsets.extend([piece.offset for piece in pieces])
    columns.token_indexes.extend([piece.token_index for piece in pieces])
    columns.token_ids.extend([token_id for piece in pieces for token_id in piece.ids])
    columns.text = b"".join([piece.text for piece in pieces])
    if any(len(piece.ids) > 1 for piece in pieces):
        columns.text_lengths.extend([n for piece in pieces for n in piece.lengths_of_ids()])
    for entry in entries:
        if entry.token_bytes is not None:
            columns.logprobs.extend(_logprobs(entry))


def _logprobs(entry: Tokens) -> list[pb.TokenLogprobs]:
    """One per token; ids that were forced have none here, and come first."""
    piece, stream = entry.piece, entry.stream.stream
    forced = len(piece.ids) - len(piece.sampled)
    found = [pb.TokenLogprobs(stream_id=stream) for _ in range(forced)]
    return found + [_logprob(entry, stream, sampled) for sampled in piece.sampled]


def _logprob(entry: Tokens, stream: int, sampled: Sampled) -> pb.TokenLogprobs:
    spell = entry.token_bytes
    assert spell is not None  # noqa: S101
    pairs = [(sampled.token_id, sampled.logprob or 0.0)]
    pairs += [(top.token_id, top.logprob) for top in sampled.top]
    chosen, *top = [
        pb.TokenLogprob(token_id=token_id, token=spell(token_id), logprob=logprob)
        for token_id, logprob in pairs
    ]
    return pb.TokenLogprobs(stream_id=stream, chosen=chosen, top=top)


def _accepted(accepted: Accepted, instance: str, model: str) -> pb.ServerFrame:
    return pb.ServerFrame(
        stream_id=accepted.stream.stream,
        accepted=pb.Accepted(
            instance=instance,
            adopted_batch_size=accepted.adopted_batch_size,
            token_quota=accepted.token_quota,
            prompt_tokens=accepted.prompt_tokens,
            model=model,
            from_token=accepted.from_token,
        ),
    )


def _end(end: Done | Failed, now: float) -> pb.ServerFrame:
    stream = end.stream.stream
    if isinstance(end, Failed):
        return pb.ServerFrame(stream_id=stream, error=error_to_pb(end.error, end.usage))
    done = pb.Done(
        finish_reason=_FINISH[end.reason],
        usage=_usage(end.usage),
        timing=pb.Timing(**asdict(end.marks.timing(now))),
    )
    return pb.ServerFrame(stream_id=stream, done=done)


def _usage(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )


def _pressure(pressure: Pressure) -> pb.Pressure:
    return pb.Pressure(
        level=_PRESSURE[pressure.level],
        reason=pressure.reason,
        queue_depth=pressure.queue_depth,
        free_blocks=pressure.free_blocks,
    )
