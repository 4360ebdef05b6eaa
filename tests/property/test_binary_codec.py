"""The binary forms mean what the JSON forms mean, and no bytes get more than that out (§5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance.protocol.binary_codec import (
    ClientDecoder,
    ClientEncoder,
    ServerDecoder,
    ServerEncoder,
)
from seedance.protocol.envelope import PAYLOAD_BYTES_MAX, seal
from seedance.protocol.errors import ErrorCode, ProtocolFault, SeedanceError
from seedance.protocol.frames import SEQUENCED, ClientFrame, Generate, ServerFrame
from seedance.protocol.json_codec import decode_client, decode_server, encode_client, encode_server
from seedance.v2.frames_pb2 import Frame, FrameBatch
from tests.support.frame_strategies import CLIENT_FRAMES, SERVER_FRAMES, STREAM_IDS

BOTH = pytest.mark.parametrize("compressed", [False, True], ids=["proto", "proto.zstd"])
# Where the numbers jump: a frame that is sent again, a resume.
SEQ_JUMPS = st.none() | st.integers(1, 2**62)
SERVER_TRAFFIC = st.lists(
    st.lists(st.tuples(SERVER_FRAMES, SEQ_JUMPS), min_size=1, max_size=6), max_size=6
)


def cuts(data: st.DataObject, stream: bytes) -> Iterator[bytes]:
    """The stream in messages of any size."""
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream)))
        yield stream[at : at + size]
        at += size


def numbered(
    ticks: list[list[tuple[ServerFrame, int | None]]],
) -> list[list[tuple[ServerFrame, int | None]]]:
    """The frames with numbers as a session gives them, jumping where it is told to."""
    seq = 0
    result = []
    for tick in ticks:
        result.append([])
        for frame, jump in tick:
            if isinstance(frame, SEQUENCED):
                seq = jump or seq + 1
            result[-1].append((frame, seq if isinstance(frame, SEQUENCED) else None))
    return result


@BOTH
@given(data=st.data(), ticks=SERVER_TRAFFIC)
def test_a_client_reads_the_same_frames(
    compressed: bool, data: st.DataObject, ticks: list[list[tuple[ServerFrame, int | None]]]
) -> None:
    """Whatever a gateway sends, in whatever pieces it arrives: what JSON would have said."""
    encoder, decoder = ServerEncoder(compressed=compressed), ServerDecoder(compressed=compressed)
    sent = numbered(ticks)
    stream = b"".join(message for tick in sent for message in encoder.encode(tick))
    found = [frame for piece in cuts(data, stream) for frame in decoder.feed(piece)]
    assert found == [decode_server(encode_server(*frame)) for tick in sent for frame in tick]


@BOTH
@given(data=st.data(), batches=st.lists(st.lists(CLIENT_FRAMES, max_size=3), max_size=4))
def test_a_gateway_reads_the_same_frames(
    compressed: bool, data: st.DataObject, batches: list[list[ClientFrame]]
) -> None:
    """Whatever a client sends, in whatever pieces it arrives: what JSON would have said."""
    encoder, decoder = ClientEncoder(compressed=compressed), ClientDecoder(compressed=compressed)
    stream = b"".join(encoder.encode(batch) for batch in batches)
    pieces = cuts(data, stream)
    found = [frame for piece in pieces for batch in decoder.feed(piece) for frame in batch]
    assert found == [meaning(frame) for batch in batches for frame in batch]


def meaning(frame: ClientFrame) -> ClientFrame:
    """The frame as JSON carries it; the bare form is a matter of JSON alone."""
    frame = decode_client(encode_client(frame))
    return replace(frame, bare=False) if isinstance(frame, Generate) else frame


# ---------------------------------------------------------------- what is wrong

GENERATES = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(max_size=70),
        "prompt": st.text(max_size=3),
        "max_tokens": st.integers(-5, 5) | st.just(2**62),
        "min_tokens": st.integers(-5, 5),
        "temperature": st.floats(),
        "top_p": st.floats(),
        "top_k": st.integers(-3, 3),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "logprobs": st.integers(-3, 30),
        "priority": st.integers(-3, 30),
        "on_disconnect": st.text(max_size=5),
        "stop": st.lists(st.text(max_size=2), max_size=18),
        "messages": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "role": st.sampled_from(["user", "system", "robot"]),
                    "content": st.text(max_size=3),
                },
            ),
            max_size=3,
        ),
    },
)


def outcome_of_json(body: dict) -> object:
    try:
        return decode_client(json.dumps({"type": "generate", **body}))
    except SeedanceError as refusal:
        return refusal.code, refusal.field, refusal.message, refusal.stream_id


def outcome_of_binary(body: dict) -> object:
    batch = FrameBatch()
    frame = batch.frames.add()
    frame.generate.SetInParent()
    for name, value in body.items():
        if name == "messages":
            for message in value:
                frame.generate.messages.add(**message)
        elif isinstance(value, list):
            frame.generate.stop.extend(value)
        else:
            setattr(frame.generate, name, value)
    [[result]] = ClientDecoder(compressed=False).feed(seal(batch.SerializeToString()))
    if isinstance(result, SeedanceError):
        return result.code, result.field, result.message, result.stream_id
    return result


@given(GENERATES)
def test_a_wrong_request_is_refused_in_the_same_words(body: dict) -> None:
    """Same code, same field, same message, same stream: one judge for both forms (§3)."""
    assert outcome_of_binary(body) == outcome_of_json(body)


@BOTH
@given(pieces=st.lists(st.binary(max_size=200) | st.binary(max_size=100).map(seal), max_size=5))
def test_any_bytes_are_frames_or_a_protocol_error(compressed: bool, pieces: list[bytes]) -> None:
    """At a gateway: frames, `bad_request` naming a field, or 4400; at a client: frames or a fault."""
    gateway, client = ClientDecoder(compressed=compressed), ServerDecoder(compressed=compressed)
    found: list[object] = []
    with suppress(ProtocolFault):
        found += [frame for piece in pieces for batch in gateway.feed(piece) for frame in batch]
    with suppress(ProtocolFault):
        found += [frame for piece in pieces for frame in client.feed(piece)]
    for frame in found:
        if isinstance(frame, SeedanceError):
            assert frame.code is ErrorCode.BAD_REQUEST
            assert frame.field


FRAMES = st.builds(
    Frame,
    tokens_after=st.integers(0, 3),
    stream=st.none() | st.integers(0, 3),
    flush=st.none() | st.just(Frame.Flush(offset_skip=1)),
    done=st.none() | st.just(Frame.Done(finish_reason="stop")),
    error=st.none() | st.just(Frame.Error(code="new_code")),
    accepted=st.none() | st.just(Frame.Accepted()),
    resumed=st.none() | st.just(Frame.Resumed()),
    ping=st.none() | st.just(Frame.Time()),
)
COLUMN = st.lists(st.integers(0, 3), max_size=4)
BATCHES = st.builds(
    FrameBatch,
    delta=st.lists(st.text(max_size=2), max_size=4),
    interval_change_ms=st.integers(-9, 9),
    frames=st.lists(FRAMES, max_size=4),
    token_streams=COLUMN,
    base_seq=st.integers(0, 9),
    base_timestamp_ms=st.none() | st.integers(0, 9),
    new_streams=st.lists(STREAM_IDS, max_size=2),
    elapsed_ms=COLUMN,
    extra_tokens=COLUMN,
    offset_skips=COLUMN,
    part=st.binary(max_size=3),
    more_parts=st.booleans(),
)


@given(st.lists(BATCHES, max_size=5))
def test_any_batch_is_frames_or_a_protocol_error(batches: list[FrameBatch]) -> None:
    """Columns of unequal length, numbers that name no stream, parts of nothing: never a crash."""
    client, gateway = ServerDecoder(compressed=False), ClientDecoder(compressed=False)
    for batch in batches:
        message = seal(batch.SerializeToString())
        for envelope in gateway.feed(message):
            list(envelope)
        try:
            list(client.feed(message))
        except ProtocolFault:
            return


@given(st.integers(0, 2**64), st.integers(1, 64))
def test_what_waits_for_the_rest_is_bounded(seed: int, size: int) -> None:
    """A decoder keeps less than one envelope, however the peer drips it."""
    decoder = ClientDecoder(compressed=False)
    waiting = decoder._opener._envelopes._pending
    stream = seal(bytes(size) + seed.to_bytes(9, "big"))
    for byte in stream[:-1]:
        assert not list(decoder.feed(bytes([byte])))
        assert len(waiting) <= PAYLOAD_BYTES_MAX
    with pytest.raises(ProtocolFault):
        list(map(list, decoder.feed(stream[-1:])))
    assert not waiting
