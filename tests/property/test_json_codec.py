"""JSON frames survive the way there and back, whatever they hold (contract §3)."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from seedance.protocol.errors import ErrorCode, ProtocolFault, SeedanceError
from seedance.protocol.frames import SEQUENCED, ClientFrame, ServerFrame
from seedance.protocol.json_codec import (
    decode_client,
    decode_server,
    encode_client,
    encode_server,
)
from tests.support.frame_strategies import CLIENT_FRAMES, SEQS, SERVER_FRAMES, TEXT, maybe

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    [
        "type",
        "id",
        "seq",
        "sack",
        "session",
        "token",
        "last_seq",
        "offsets",
        "t",
        "model",
        "messages",
        "prompt",
        "stream",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "logit_bias",
        "seed",
        "stop",
        "logprobs",
        "priority",
        "traceparent",
    ]
)
TYPES = st.sampled_from(["generate", "ack", "cancel", "resume", "ping", "pong", "close"])


@given(CLIENT_FRAMES)
def test_client_frames_come_back(frame: ClientFrame) -> None:
    """Decoding what was encoded gives the very frame."""
    assert decode_client(encode_client(frame)) == frame


@given(SERVER_FRAMES, SEQS)
def test_server_frames_come_back(frame: ServerFrame, seq: int) -> None:
    """Decoding what was encoded gives the very frame and its number."""
    number = seq if isinstance(frame, SEQUENCED) else None
    message = encode_server(frame, number)
    json.loads(message.encode(), parse_constant=_no_constant)
    assert decode_server(message) == (frame, number)


def _no_constant(name: str) -> None:
    raise AssertionError(name)


@given(st.dictionaries(FIELDS, JSON, max_size=6), maybe(TYPES))
def test_any_object_is_a_frame_or_a_documented_error(body: dict, kind: str | None) -> None:
    """Whatever an object holds, the decoder gives a frame or a refusal that names a field."""
    if kind is not None:
        body = {**body, "type": kind}
    outcome: object
    try:
        outcome = decode_client(json.dumps(body))
    except SeedanceError as refusal:
        outcome = refusal
    if isinstance(outcome, SeedanceError):
        assert outcome.code is ErrorCode.BAD_REQUEST
        assert outcome.field


@given(st.text())
def test_any_text_is_a_frame_or_a_documented_error(message: str) -> None:
    """No text message at all gets another exception out of the decoder."""
    try:
        decode_client(message)
    except (ProtocolFault, SeedanceError):
        return
