"""Every frame that the contract has, for property tests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from seedance.protocol.errors import ErrorCode
from seedance.protocol.frames import (
    Accepted,
    Ack,
    Cancel,
    Checkpoint,
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
    SessionFrame,
    Timing,
    Token,
    TokenLogprob,
    Usage,
    WindowRange,
)
from seedance.protocol.request import LIMITS, ChatMessage, GenerateRequest, Sampling

__all__ = ["CLIENT_FRAMES", "SEQS", "SERVER_FRAMES", "STREAM_IDS", "TEXT", "maybe"]

TEXT = st.text(max_size=20)
WORD = st.text(min_size=1, max_size=20)
STREAM_IDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=64)
COUNT = st.integers(0, 2**31 - 1)
SEQS = st.integers(1, 2**63 - 1)
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


GENERATES = st.builds(
    Generate,
    id=maybe(STREAM_IDS),
    request=requests(messages=MESSAGES) | requests(prompt=WORD),
    stream=st.booleans(),
    on_disconnect=maybe(st.sampled_from(["keep", "cancel"])),
    receipt=st.booleans(),
    traceparent=maybe(TEXT),
    bare=st.booleans(),
)


def _in_one_frame(generate: Generate) -> Generate:
    """An answer in one piece has a bound when it tells log-probabilities."""
    most = LIMITS.whole_logprobs_max // (LIMITS.logprobs_max + 1)
    if generate.stream or (generate.request.max_tokens or 0) <= most:
        return generate
    request = replace(generate.request, max_tokens=generate.request.min_tokens or 1)
    return replace(generate, request=request)


CLIENT_FRAMES = st.one_of(
    GENERATES.map(_in_one_frame),
    st.builds(
        Ack,
        SEQS,
        st.lists(st.tuples(SEQS, SEQS).map(sorted).map(tuple), max_size=5).map(tuple),
    ),
    st.builds(Cancel, STREAM_IDS),
    st.builds(
        Resume, WORD, WORD, COUNT, st.dictionaries(STREAM_IDS, st.integers(-1, 2**40), max_size=5)
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
    st.builds(Resumed, SEQS, SESSIONS),
    st.builds(Accepted, STREAM_IDS, WORD, COUNT, COUNT, maybe(TEXT)),
    st.builds(Token, STREAM_IDS, COUNT, TEXT, COUNT, st.integers(1, 9), maybe(LOGPROBS)),
    st.builds(Flush, STREAM_IDS, COUNT),
    st.builds(
        Done,
        STREAM_IDS,
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
        maybe(STREAM_IDS),
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
