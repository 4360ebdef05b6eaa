"""Server frames as batches; that they mean what JSON means is a property test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seedance.protocol import server_batch
from seedance.protocol.differences import STREAMS_MAX
from seedance.protocol.errors import ErrorCode, ProtocolFault
from seedance.protocol.frames import Accepted, Done, ErrorFrame, Flush, Timing, Token, Usage
from seedance.protocol.server_batch import ServerBatchReader, ServerBatchWriter
from seedance.v2.frames_pb2 import Frame, FrameBatch

DONE = Done("s", "stop", Usage(1, 0, 1), Timing())


def test_a_steady_token_is_nothing_but_its_text() -> None:
    """Number, stream, offset and time follow on: tag, length and text are all that is left (§5)."""
    writer = ServerBatchWriter()
    for index in range(3):
        last = list(writer.payloads([(Token("s", 3 * index, " ab", 1000 + 10 * index), index + 1)]))
    assert last == [b"\x0a\x03 ab"]


def test_differences_are_told_once() -> None:
    """Columns only where they say something, and as long as the texts."""
    writer = ServerBatchWriter()
    frames = [
        (Accepted("b", "i", 1, 1), 7),
        (Token("a", 5, "é", 1000, 2), 8),
        (Flush("a", 7), 9),
        (Token("b", 0, "x", 1001), 10),
    ]
    [payload] = writer.payloads(frames)
    batch = FrameBatch.FromString(payload)
    assert (batch.base_seq, batch.base_timestamp_ms) == (7, 1000)
    assert list(batch.new_streams) == ["b", "a"]
    assert list(batch.token_streams) == [1, 0]
    assert list(batch.elapsed_ms) == [0, 1]
    assert list(batch.extra_tokens) == [1, 0]
    assert list(batch.offset_skips) == [5, 0]
    assert [frame.tokens_after for frame in batch.frames] == [2, 1]
    assert not batch.frames[1].HasField("stream")
    assert ServerBatchReader().read(payload) == frames


def test_a_frame_that_is_sent_again_has_its_old_number() -> None:
    """Numbers within a batch rise by one, so it begins a batch of its own."""
    token = (Token("s", 0, "a", 1), 1)
    frames = [token, (Token("s", 1, "b", 1), 2), token, (DONE, 3)]
    payloads = list(ServerBatchWriter().payloads(frames))
    assert len(payloads) == 3
    reader = ServerBatchReader()
    assert [frame for payload in payloads for frame in reader.read(payload)] == frames


def test_frames_that_are_sent_again_after_their_end_fill_nothing() -> None:
    """Each names its stream anew, without an end to follow: after a thousand of them the rest still goes on."""
    writer, reader = ServerBatchWriter(), ServerBatchReader()
    running, seq = (Token("runs", 0, "x", 1), 1), 1
    for payload in writer.payloads([running]):
        assert reader.read(payload) == [running]
    for index in range(3 * STREAMS_MAX // 2):
        frames = [
            (Token(f"s{index}", 0, "a", 1), seq + 1),
            (replace(DONE, id=f"s{index}"), seq + 2),
        ]
        seq += 2
        frames += [frames[0], (Token("runs", 1 + index, "x", 1), seq + 1)]
        seq += 1
        for run in (frames[:3], frames[3:]):
            read = [frame for payload in writer.payloads(run) for frame in reader.read(payload)]
            assert read == run


def test_an_end_forgets_the_stream() -> None:
    """`done`, and `error` with an id: what both ends keep is bounded by the live streams."""
    writer, reader = ServerBatchWriter(), ServerBatchReader()
    for index in range(2000):
        end = DONE if index % 2 else ErrorFrame(ErrorCode.UNKNOWN_STREAM, "?", False, id="s")
        [payload] = writer.payloads([(end, index + 1)])
        assert reader.read(payload) == [(end, index + 1)]
    assert writer._chain.streams.ids == reader._chain.streams.ids == {}


def test_a_batch_too_large_for_an_envelope_comes_in_parts() -> None:
    """An answer with `stream: false` and log-probabilities may be larger than 1 MiB."""
    done = Done("s", "stop", Usage(), Timing(), text="x" * 1_500_000)
    payloads = list(ServerBatchWriter().payloads([(done, 1)]))
    assert [len(payload) <= 1024 * 1024 for payload in payloads] == [True] * 3
    reader = ServerBatchReader()
    assert [reader.read(payload) for payload in payloads] == [[], [], [(done, 1)]]


def test_a_full_batch_is_cut() -> None:
    """A replay of a whole log is not one batch."""
    frames = [(Flush("s", 0), seq) for seq in range(1, server_batch.FRAMES_MAX + 2)]
    assert len(list(ServerBatchWriter().payloads(frames))) == 2


@pytest.mark.parametrize(
    "batch",
    [
        FrameBatch(delta=["x"]),
        FrameBatch(delta=["x"], base_timestamp_ms=1),
        FrameBatch(delta=["x", "y"], new_streams=["s"], base_timestamp_ms=1, offset_skips=[1]),
        FrameBatch(frames=[Frame(flush=Frame.Flush(), tokens_after=1)], new_streams=["s"]),
        FrameBatch(frames=[Frame()]),
        FrameBatch(frames=[Frame(ack=Frame.Ack(seq=1))]),
        FrameBatch(frames=[Frame(accepted=Frame.Accepted())]),
        FrameBatch(frames=[Frame(done=Frame.Done(receipt="{"), stream=0)], new_streams=["s"]),
        FrameBatch(part=b"\xff"),
    ],
    ids=["base", "stream", "column", "order", "unknown", "client", "id", "receipt", "part"],
)
def test_what_no_gateway_sends(batch: FrameBatch) -> None:
    """A fault, never another exception."""
    with pytest.raises(ProtocolFault):
        ServerBatchReader().read(batch.SerializeToString())


def test_parts_without_end_are_not_kept() -> None:
    """8 MiB, then it is a fault."""
    reader = ServerBatchReader()
    part = FrameBatch(part=bytes(1024 * 1024), more_parts=True).SerializeToString()
    for _ in range(8):
        assert reader.read(part) == []
    with pytest.raises(ProtocolFault):
        reader.read(part)
    assert len(reader._parts) <= server_batch.PARTS_BYTES_MAX
