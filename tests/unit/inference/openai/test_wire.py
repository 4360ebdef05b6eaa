"""What a server is asked and how its answers are read, byte by byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from inference.openai.wire import DONE, EVENT_BYTES_MAX, Delta, delta, event_data, refusal, wish
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import ChatMessage, GenerateRequest, Sampling

CHAT = GenerateRequest(messages=(ChatMessage("user", "hi"),))


async def _cut(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_events_are_read_however_they_are_cut(size: int, end: bytes) -> None:
    """Comments, other fields, missing blanks and split lines change nothing; a cut last event is none."""
    lines = [
        b": hello",
        b"",
        b"event: x",
        b'data: {"a":"\xc3\xa9"}',
        b"id: 3",
        b"",
        b"",
        b"data:[DONE]",
    ]
    data = end.join([*lines, b"", b"data: {cut"])
    found = [event async for event in event_data(_cut(data, size))]
    assert found == [b'{"a":"\xc3\xa9"}', DONE]


async def test_an_event_without_end_is_refused() -> None:
    """What is kept of one event is bounded."""
    with pytest.raises(SeedanceError) as refused:
        async for _ in event_data(_cut(b"data: " + b"x" * (2 * EVENT_BYTES_MAX), 65_536)):
            pass
    assert refused.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}, Delta("a")),
        ({"choices": [{"delta": {"role": "assistant", "content": None}}]}, Delta()),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, Delta("", "stop")),
        ({"choices": [{"text": "b", "finish_reason": "length"}]}, Delta("b", "length")),
        (
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
            Delta(counts=(3, 0, 5)),
        ),
        (
            {
                "choices": [{"delta": {"content": "c"}}],
                "usage": {
                    "prompt_tokens": 3,
                    "completion_tokens": 1,
                    "prompt_tokens_details": {"cached_tokens": 2},
                },
            },
            Delta("c", None, (3, 2, 1)),
        ),
        ({"choices": [{"delta": {"content": "\ud83d"}}]}, Delta("\ufffd")),
    ],
)
def test_an_event_is_text_reason_and_counts(event: dict, expected: Delta) -> None:
    """Of chats and of completions; half a surrogate pair is U+FFFD."""
    assert delta(json.dumps(event).encode()) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"[]",
        b"3",
        b'{"error": {"message": "at /srv/model"}}',
        b'{"choices": 3}',
        b'{"choices": [{"delta": {"content": 3}}]}',
        b'{"choices": [{"delta": 3}]}',
        b'{"choices": [], "usage": {"prompt_tokens": "many"}}',
        b'{"choices": [], "usage": 1}',
        b'{"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 1}}',
        b'{"choices": [], "usage": {"prompt_tokens": 4294967296, "completion_tokens": 1}}',
        b'{"choices": [], "usage": {"prompt_tokens": Infinity, "completion_tokens": 1}}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_what_is_no_event_is_unavailable(data: bytes) -> None:
    """Never another exception, never the server's words."""
    with pytest.raises(SeedanceError) as refused:
        delta(data)
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert "/srv" not in refused.value.message


@pytest.mark.parametrize(("prompt", "cached", "answer"), [(-1, 0, 1), (3, -1, 1), (3, 0, 10**30)])
def test_counts_that_cannot_be_are_unavailable(prompt: int, cached: int, answer: int) -> None:
    """One server's numbers end its own answer, not the call that all streams share."""
    usage = _usage(prompt, cached, answer)
    with pytest.raises(SeedanceError) as refused:
        delta(json.dumps({"choices": [], "usage": usage}).encode())
    assert refused.value.code is ErrorCode.UNAVAILABLE


def test_no_more_was_cached_than_there_was() -> None:
    """Metering would refuse the bill (CASES 90)."""
    event = {"choices": [], "usage": _usage(3, 99, 1)}
    assert delta(json.dumps(event).encode()).counts == (3, 3, 1)


def _usage(prompt: int, cached: int, answer: int) -> dict[str, object]:
    details = {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": answer, "prompt_tokens_details": details}


def test_seeds_fit_everywhere_and_differ_by_choice() -> None:
    """A small seed is the server's seed; a large one and other choices are functions of both; none is none."""

    def seed(value: int, choice: int = 0) -> int:
        request = GenerateRequest(prompt="x", sampling=Sampling(seed=value, choice=choice))
        return wish(request, "m", counting=False)[1]["seed"]

    assert seed(7) == 7
    seeds = {seed(7, choice) for choice in range(8)} | {seed(2**62), seed(2**62 + 1)}
    assert len(seeds) == 10
    assert all(0 <= value < 2**31 for value in seeds)
    assert seed(2**62, 3) == seed(2**62, 3)
    assert "seed" not in wish(CHAT, "m", counting=False)[1]  # then the server draws one


def test_counts_with_each_event_are_asked_of_those_who_know_the_word() -> None:
    """Others refuse fields that they do not know."""
    assert wish(CHAT, "m", counting=True)[1]["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": True,
    }
    assert "continuous_usage_stats" not in wish(CHAT, "m", counting=False)[1]["stream_options"]


def test_everything_that_is_asked_is_passed_on() -> None:
    """Every field of a request that a server can have a word for is in its body."""
    sampling = Sampling(0.5, 0.9, 3, 0.1, 1.0, -1.0, 1.1, {5: 2.0}, 7)
    request = GenerateRequest(
        prompt_token_ids=(1, 2),
        sampling=sampling,
        max_tokens=9,
        min_tokens=2,
        stop=("a",),
        stop_token_ids=(3,),
        ignore_eos=True,
    )
    path, body = wish(request, "m", counting=False)
    assert path == "completions"
    assert json.loads(json.dumps(body)) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "prompt": [1, 2],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": 2.0},
        "seed": 7,
        "max_tokens": 9,
        "min_tokens": 2,
        "stop": ["a"],
        "stop_token_ids": [3],
        "ignore_eos": True,
    }


def test_retry_after_is_believed_within_bounds() -> None:
    """Only whole seconds, at most half a minute; else a second."""
    times = {
        text: refusal(429, text).retry_after_ms for text in ("3", "9999", "soon", "", "-1", "²")
    }
    assert times == {"3": 3000, "9999": 30_000, "soon": 1000, "": 1000, "-1": 1000, "²": 1000}
