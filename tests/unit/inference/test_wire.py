"""Engine outputs as protobuf."""

from __future__ import annotations

from inference.engine.answer import FinishReason, Piece
from inference.engine.messages import (
    Accepted,
    CallOutput,
    Done,
    Failed,
    Pressure,
    PressureLevel,
    StreamKey,
    Tokens,
)
from inference.engine.plan import Sampled, SampledLogprob
from inference.engine.timing import Marks
from inference.outbox import OutboxBatch
from inference.wire import response_to_pb
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Usage
from seedance.v2 import inference_pb2 as pb

ONE, TWO = StreamKey(9, 1), StreamKey(9, 2)


def _response(output: CallOutput, pressure: Pressure | None = None) -> pb.StreamResponse:
    batch = OutboxBatch(output, wall_ms=123)
    return response_to_pb(batch, pressure, instance="i", model="m", now=5.0)


def test_columns_are_parallel() -> None:
    """Entry i of each column is stream i's; ids and text follow each other; empty text is kept."""
    marks = Marks(0, 0, 0)
    columns = _response(
        CallOutput(
            tokens=[
                Tokens(ONE, Piece(4, [7, 8], 10, "é".encode(), [], [0, 2]), marks),
                Tokens(TWO, Piece(0, [9], 0, b"", []), Marks(0, 0, 0)),
                Tokens(StreamKey(9, 3), Piece(2, [], 5, b"fox", []), Marks(0, 0, 0)),
            ]
        )
    ).tokens
    assert list(columns.stream_ids) == [1, 2, 3]
    assert list(columns.token_counts) == [2, 1, 0]
    assert list(columns.byte_lengths) == [2, 0, 3]
    assert list(columns.offsets) == [10, 0, 5]
    assert list(columns.token_indexes) == [4, 0, 2]
    assert list(columns.token_ids) == [7, 8, 9]
    assert columns.text == "éfox".encode()
    assert list(columns.text_lengths) == [0, 2, 0]
    assert columns.timestamp_ms == 123
    assert marks.first_sent == 5.0


def test_logprobs_one_per_token_of_who_asked() -> None:
    """Forced ids come first and have none; the chosen one comes before its alternatives."""
    sampled = Sampled(1, 7, -0.5, (SampledLogprob(7, -0.5), SampledLogprob(8, -1.0)))
    spell = {7: b"\xf0", 8: b"b"}.__getitem__
    columns = _response(
        CallOutput(
            tokens=[
                Tokens(ONE, Piece(0, [3, 7], 0, b"x", [sampled], [0, 1]), Marks(0, 0, 0), spell),
                Tokens(TWO, Piece(0, [3], 0, b"x", []), Marks(0, 0, 0)),
            ]
        )
    ).tokens
    forced, chosen = columns.logprobs
    assert (forced.stream_id, forced.HasField("chosen")) == (1, False)
    assert (chosen.chosen.token_id, chosen.chosen.token, chosen.chosen.logprob) == (
        7,
        b"\xf0",
        -0.5,
    )
    assert [top.token_id for top in chosen.top] == [7, 8]


def test_frames_come_in_the_order_that_a_receiver_applies() -> None:
    """Pressure and beginnings before ends; every field translated."""
    error = SeedanceError(ErrorCode.OVERLOADED, "full", field="prompt", retry_after_ms=100)
    frames = _response(
        CallOutput(
            accepted=[Accepted(ONE, 64, 100, 5, 2)],
            ends=[
                Done(ONE, FinishReason.LENGTH, Usage(5, 0, 3), Marks(1, 1, 1, 2, 2, 3, 4, 6)),
                Failed(TWO, error),
            ],
        ),
        Pressure(PressureLevel.PAUSE, "the queue is full", 9, 1),
    ).frames
    pressure, accepted, done, failed = frames
    assert pressure.stream_id == 0
    assert pressure.pressure.level == pb.PRESSURE_LEVEL_PAUSE
    assert (pressure.pressure.queue_depth, pressure.pressure.free_blocks) == (9, 1)
    assert (accepted.accepted.instance, accepted.accepted.model) == ("i", "m")
    assert (accepted.accepted.token_quota, accepted.accepted.from_token) == (100, 2)
    assert done.done.finish_reason == pb.FINISH_REASON_LENGTH
    assert (done.done.usage.prompt_tokens, done.done.usage.completion_tokens) == (5, 3)
    assert done.done.timing.ttft_ms == 3000
    assert (failed.error.code, failed.error.retryable) == ("overloaded", True)
    assert (failed.error.retry_after_ms, failed.error.field) == (100, "prompt")
