"""Between protobuf and what the gateway knows of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.upstream.base import Attach, Open, PressureLevel, UpstreamAccepted, UpstreamTokens
from mesh.rpc.convert import request_to_pb
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Timing, TokenLogprob, Usage
from seedance.protocol.pressure import Pressed
from seedance.v2 import inference_pb2 as pb

__all__ = [
    "accepted_from_pb",
    "attach_to_pb",
    "error_from_pb",
    "finish_reason_from_pb",
    "open_to_pb",
    "pressure_from_pb",
    "timing_from_pb",
    "tokens_from_pb",
    "usage_from_pb",
]

_FINISH = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_CANCELLED: "cancelled",
}
_PRESSURE = {
    pb.PRESSURE_LEVEL_THROTTLE: PressureLevel.THROTTLE,
    pb.PRESSURE_LEVEL_PAUSE: PressureLevel.PAUSE,
}


def open_to_pb(stream_id: int, spec: Open) -> pb.ClientFrame:
    """The frame that begins or continues a generation."""
    return pb.ClientFrame(
        stream_id=stream_id,
        open=pb.Open(
            generation=spec.generation,
            epoch=spec.epoch,
            request=request_to_pb(spec.request),
            forced_prefix=spec.forced_prefix,
            traceparent=spec.traceparent,
            credit=spec.credit,
            tenant=spec.tenant,
            weight=spec.weight,
        ),
    )


def attach_to_pb(stream_id: int, spec: Attach) -> pb.ClientFrame:
    """The frame that takes a generation over."""
    return pb.ClientFrame(
        stream_id=stream_id,
        attach=pb.Attach(
            generation=spec.generation,
            epoch=spec.epoch,
            from_token=spec.from_token,
            credit=spec.credit,
            traceparent=spec.traceparent,
        ),
    )


def accepted_from_pb(message: pb.Accepted) -> UpstreamAccepted:
    """An instance's yes."""
    return UpstreamAccepted(
        instance=message.instance,
        model=message.model,
        adopted_batch_size=message.adopted_batch_size,
        token_quota=message.token_quota,
        prompt_tokens=message.prompt_tokens,
        from_token=message.from_token,
    )


def pressure_from_pb(message: pb.Pressure) -> Pressed:
    """How much less an instance asks for; what is not known asks for nothing."""
    return _PRESSURE.get(message.level, PressureLevel.NONE), message.reason


def finish_reason_from_pb(reason: int) -> str:
    """The contract's word; `stop` for one that a newer instance may have."""
    return _FINISH.get(reason, "stop")  # type: ignore[call-overload, no-any-return]


def usage_from_pb(message: pb.Usage) -> Usage:
    """What the instance counted."""
    return Usage(
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        completion_tokens=message.completion_tokens,
    )


def timing_from_pb(message: pb.Timing) -> Timing:
    """Where the instance's time went."""
    return Timing(
        queue_ms=message.queue_ms,
        preprocess_ms=message.preprocess_ms,
        prefill_ms=message.prefill_ms,
        first_decode_ms=message.first_decode_ms,
        cache_sync_ms=message.cache_sync_ms,
        egress_ms=message.egress_ms,
        ttft_ms=message.ttft_ms,
        total_ms=message.total_ms,
    )


def error_from_pb(message: pb.Error) -> SeedanceError:
    """An instance's no; a code that the table does not have is `internal`."""
    known = message.code in ErrorCode.__members__.values()
    return SeedanceError(
        ErrorCode(message.code) if known else ErrorCode.INTERNAL,
        message.message,
        field=message.field or None,
        retry_after_ms=message.retry_after_ms or None,
    )


def _logprob(message: pb.TokenLogprob, top: Sequence[pb.TokenLogprob] = ()) -> TokenLogprob:
    return TokenLogprob(
        token=message.token.decode(errors="replace"),
        bytes=tuple(message.token),
        logprob=message.logprob,
        top=tuple(_logprob(other) for other in top),
    )


def _logprobs_by_stream(
    messages: Sequence[pb.TokenLogprobs],
) -> dict[int, tuple[TokenLogprob, ...]]:
    found: dict[int, tuple[TokenLogprob, ...]] = {}
    for message in messages:
        # Tokens that were replayed to a new owner come without.
        if message.HasField("chosen"):
            earlier = found.get(message.stream_id, ())
            found[message.stream_id] = (*earlier, _logprob(message.chosen, message.top))
    return found


def tokens_from_pb(columns: pb.TokenColumns) -> Iterator[tuple[int, UpstreamTokens]]:
    """Each entry of the columns with its stream's id.

    Columns that do not fit together end the iteration by `ValueError`: the other end is no
    instance of ours.
    """
    token_ids, text = tuple(columns.token_ids), columns.text
    lengths = tuple(columns.text_lengths)
    timestamp_ms = columns.timestamp_ms
    logprobs = _logprobs_by_stream(columns.logprobs) if columns.logprobs else {}
    token_at = byte_at = 0
    for stream_id, count, length, offset, index in zip(
        columns.stream_ids,
        columns.token_counts,
        columns.byte_lengths,
        columns.offsets,
        columns.token_indexes,
        strict=True,
    ):
        token_end, byte_end = token_at + count, byte_at + length
        yield (
            stream_id,
            # By place, since names cost as much again.
            UpstreamTokens(
                token_ids[token_at:token_end],
                index,
                text[byte_at:byte_end],
                offset,
                timestamp_ms,
                logprobs.get(stream_id, ()) if logprobs else (),
                lengths[token_at:token_end] if lengths else (),
            ),
        )
        token_at, byte_at = token_end, byte_end
    fits = len(lengths) in (0, len(token_ids)) and sum(lengths) <= len(text)
    if not fits or token_at != len(token_ids) or byte_at != len(text):
        raise ValueError("token columns do not add up")
