"""JSON frames survive the way there and back, whatever they hold (contract §3)."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from seedance.protocol.errors import ErrorCode, ProtocolFault, SeedanceError
from seedance.protocol.frames import (
    SEQUENCED,
    Accepted,
    Ack,
    Cancel,
    Checkpoint,
    ClientFrame,
    Close,
    Done,
    ErrorFrame,
    Flush,
    Generate,
    GoAway,
    Heartbeat,
    Ping,
    Pong,
    PressureFrame,
    Resume,
    Resumed,
    ServerFrame,
    SessionFrame,
    Timing,
    Token,
    TokenLogprob,
    Usage,
    WindowRange,
)
from seedance.protocol.json_codec import (
    decode_client,
    decode_server,
    encode_client,
    encode_server,
)
from seedance.protocol.request import ChatMessage, GenerateRequest, Sampling

TEXT = st.text(max_size=20)
WORD = st.text(min_size=1, max_size=20)
STREAM_ID = st.text(min_size=1, max_size=64)
COUNT = st.integers(0, 2**31 - 1)
SEQ = st.integers(1, 2**63 - 1)
MS = st.integers(0, 10**9).map(lambda us: us / 1000)


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=COUNT,
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0, 2, exclude_min=True),
    logit_bias=st.dictionaries(COUNT, st.floats(-100, 100), max_size=3),
    seed=maybe(st.integers(0, 2**63 - 1)),
    logprobs=maybe(st.integers(0, 20)),
)
MESSAGES = st.tuples(
    st.lists(st.builds(ChatMessage, st.just("system"), TEXT), max_size=1),
    st.lists(
        st.builds(ChatMessage, st.sampled_from(["user", "assistant"]), TEXT), min_size=1, max_size=3
    ),
).map(lambda parts: tuple(parts[0] + parts[1]))


def requests(**source: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(
        GenerateRequest,
        **source,
        model=TEXT,
        sampling=SAMPLINGS,
        max_tokens=st.none() | st.integers(1000, 2**31 - 1),
        min_tokens=st.integers(0, 1000),
        stop=st.lists(WORD, max_size=16).map(tuple),
        ignore_eos=st.booleans(),
        priority=st.integers(0, 9),
        deadline_ms=COUNT,
        expected_tokens=COUNT,
        max_latency_ms=COUNT,
    )


CLIENT_FRAMES = st.one_of(
    st.builds(
        Generate,
        id=maybe(STREAM_ID),
        request=requests(messages=MESSAGES) | requests(prompt=WORD),
        stream=st.booleans(),
        on_disconnect=maybe(st.sampled_from(["keep", "cancel"])),
        receipt=st.booleans(),
        traceparent=maybe(TEXT),
        bare=st.booleans(),
    ),
    st.builds(
        Ack,
        SEQ,
        st.lists(st.tuples(SEQ, SEQ).map(sorted).map(tuple), max_size=5).map(tuple),
    ),
    st.builds(Cancel, STREAM_ID),
    st.builds(
        Resume, WORD, WORD, COUNT, st.dictionaries(STREAM_ID, st.integers(-1, 2**40), max_size=5)
    ),
    st.builds(Ping, maybe(COUNT | MS)),
    st.builds(Pong, maybe(COUNT | MS)),
    st.just(Close()),
)

USAGES = st.builds(Usage, COUNT, COUNT, COUNT)
SESSIONS = st.builds(
    SessionFrame,
    session=WORD,
    token=WORD,
    epoch=COUNT,
    tenant=WORD,
    mode=WORD,
    server=WORD,
    gateways=st.lists(WORD, max_size=3).map(tuple),
    resume_ttl=MS,
    heartbeat=st.builds(Heartbeat, MS, MS, MS),
    window=st.builds(WindowRange, COUNT, COUNT, COUNT),
)
LOGPROBS = st.lists(
    st.builds(
        TokenLogprob,
        TEXT,
        st.lists(st.integers(0, 255), max_size=4).map(tuple),
        st.floats(-9999, 0),
        st.lists(st.builds(TokenLogprob, TEXT, st.just(()), st.floats(-9999, 0)), max_size=2).map(
            tuple
        ),
    ),
    max_size=3,
).map(tuple)
SERVER_FRAMES = st.one_of(
    SESSIONS,
    st.builds(Resumed, SEQ, SESSIONS),
    st.builds(Accepted, STREAM_ID, WORD, COUNT, COUNT, maybe(TEXT)),
    st.builds(Token, STREAM_ID, COUNT, TEXT, COUNT, st.integers(1, 9), maybe(LOGPROBS)),
    st.builds(Flush, STREAM_ID, COUNT),
    st.builds(
        Done,
        STREAM_ID,
        st.sampled_from(["stop", "length", "cancelled"]),
        USAGES,
        st.builds(Timing, *[MS] * 8),
        maybe(TEXT),
        maybe(st.just({"signed": "so"})),
        maybe(LOGPROBS),
    ),
    st.builds(
        ErrorFrame,
        st.sampled_from(ErrorCode),
        TEXT,
        st.booleans(),
        maybe(STREAM_ID),
        maybe(COUNT),
        maybe(USAGES),
        maybe(TEXT),
    ),
    st.builds(Checkpoint, COUNT, COUNT, st.sampled_from(["committed", "memory"])),
    st.builds(PressureFrame, st.sampled_from(["none", "throttle", "pause"]), TEXT),
    st.builds(GoAway, TEXT, COUNT),
    st.builds(Ping, maybe(COUNT | MS)),
    st.builds(Pong, maybe(COUNT | MS)),
)
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


@given(SERVER_FRAMES, SEQ)
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
