"""OpenAI-shaped bodies: what they ask for, and which field is named when they are wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.openai.schema import Asked, read_chat, read_completion
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import ChatMessage

HELLO = [{"role": "user", "content": "hi"}]


def chat(headers: dict[str, str] | None = None, **fields: Any) -> Asked:
    body = {"messages": HELLO} | fields
    return read_chat(json.dumps(body).encode(), headers or {})


def completion(**fields: Any) -> Asked:
    return read_completion(json.dumps({"prompt": "hi"} | fields).encode(), {})


def refusal(raw: bytes, read: Any = read_chat) -> SeedanceError:
    with pytest.raises(SeedanceError) as refused:
        read(raw, {})
    assert refused.value.code is ErrorCode.BAD_REQUEST
    return refused.value


def test_defaults_are_openais() -> None:
    """A body with messages alone samples as OpenAI does, unstreamed, as long as the context lasts."""
    asked = chat()
    request, sampling = asked.request, asked.request.sampling
    assert request.messages == (ChatMessage("user", "hi"),)
    assert (sampling.temperature, sampling.top_p, sampling.logprobs, sampling.seed) == (
        1.0,
        1.0,
        None,
        None,
    )
    assert (request.max_tokens, request.stop, request.model) == (None, (), "")
    assert not asked.stream
    assert not asked.include_usage


def test_everything_that_can_be_asked() -> None:
    """Each known field arrives in the request."""
    asked = chat(
        model="smol",
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=-1,
        frequency_penalty=1,
        repetition_penalty=1.1,
        logit_bias={"5": -100},
        seed=7,
        logprobs=True,
        top_logprobs=3,
        max_completion_tokens=9,
        max_tokens=8,
        min_tokens=2,
        stop=["a", "b"],
        ignore_eos=True,
        priority=1,
        deadline_ms=100,
        stream=True,
        stream_options={"include_usage": True},
        user="ada",
        n=1,
        tools=[],
        response_format={"type": "text"},
        something_new={"x": 1},
        headers={"X-Expected-Tokens": "12", "X-Max-Latency": "340"},
    )
    request, sampling = asked.request, asked.request.sampling
    assert request.model == "smol"
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-1, 1)
    assert (sampling.logit_bias, sampling.seed, sampling.logprobs) == ({5: -100}, 7, 3)
    assert (request.max_tokens, request.min_tokens, request.stop) == (9, 2, ("a", "b"))
    assert (request.ignore_eos, request.priority, request.deadline_ms) == (True, 1, 100)
    assert (request.expected_tokens, request.max_latency_ms) == (12, 340)
    assert (asked.stream, asked.include_usage, asked.user) == (True, True, "ada")


def test_null_is_left_out() -> None:
    """`null` means the default, as OpenAI's own clients send it."""
    names = ("temperature", "stop", "n", "seed", "tools", "logit_bias", "user", "max_tokens")
    assert chat(**dict.fromkeys(names)).request == chat().request


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
    ],
)
def test_message_content(content: object, text: str) -> None:
    """Content is a string or a list of text parts, joined as they stand."""
    asked = chat(messages=[{"role": "developer", "content": content}, *HELLO])
    assert asked.request.messages[0] == ChatMessage("system", text)


def test_chat_logprobs() -> None:
    """`logprobs` alone is the chosen token's; `top_logprobs` needs it."""
    assert chat(logprobs=True).request.sampling.logprobs == 0
    assert chat(logprobs=False).request.sampling.logprobs is None
    assert chat(logprobs=False, top_logprobs=0).request.sampling.logprobs is None


def test_seeds_of_the_whole_signed_range() -> None:
    """OpenAI's negative seeds name streams, too, and different ones."""
    assert chat(seed=-1).request.sampling.seed == 2**63 - 1
    assert chat(seed=5).request.sampling.seed == 5


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("hi", [("hi", ())]),
        (["hi"], [("hi", ())]),
        (["hi", "ho"], [("hi", ()), ("ho", ())]),
        ([1, 2], [(None, (1, 2))]),
        ([[1, 2]], [(None, (1, 2))]),
        ([[1, 2], "hi", [3]], [(None, (1, 2)), ("hi", ()), (None, (3,))]),
    ],
)
def test_completion_prompts(prompt: object, found: list[object]) -> None:
    """A prompt is a text or token ids, by itself or in a list of several."""
    requests = completion(prompt=prompt, logprobs=2, n=2, best_of=2).requests
    assert [(r.prompt, r.prompt_token_ids) for r in requests] == found
    assert all(request.sampling.logprobs == 2 for request in requests)


def test_what_changes_no_answer_is_passed_over() -> None:
    """What clients send for OpenAI's own sake, in any form, and fields that nobody knows."""
    extra: dict[str, Any] = {
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "function_call": "none",
        "functions": [],
        "modalities": ["text"],
        "prediction": {"type": "content", "content": "x"},
        "reasoning_effort": "low",
        "verbosity": "low",
        "safety_identifier": "x",
        "top_logprobs": None,
        "a_field_of_tomorrow": {"x": [1]},
    }
    assert chat(**extra) == chat()


def test_who_it_is_for() -> None:
    """`prompt_cache_key` keeps prompts that begin alike together, else `user` does."""
    assert chat(user="ada").user == "ada"
    assert chat(user="ada", prompt_cache_key="novel").user == "novel"
    assert chat(user=None).user is None


BAD_CHAT_FIELDS = [
    # CASES 13, 14: numbers that are none, in the words of JSON's looser readers.
    *(
        (f'"{name}": {number}', name)
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p")
        for number in ("NaN", "Infinity", "-Infinity", "1e999")
    ),
    ('"repetition_penalty": 1e999', "repetition_penalty"),
    ('"logit_bias": {"5": NaN}', "logit_bias.5"),
    # CASES 17: lengths.
    ('"max_tokens": 0', "max_tokens"),
    ('"max_tokens": -1', "max_tokens"),
    (f'"max_tokens": {2**31}', "max_tokens"),
    (f'"max_tokens": {2**63}', "max_tokens"),
    (f'"max_tokens": {10**400}', "max_tokens"),
    ('"max_tokens": 1.0', "max_tokens"),
    ('"max_tokens": true', "max_tokens"),
    ('"max_completion_tokens": 0', "max_completion_tokens"),
    ('"max_completion_tokens": "5"', "max_completion_tokens"),
    # CASES 19: messages.
    ('"messages": []', "messages"),
    ('"messages": null', "messages"),
    ('"messages": {}', "messages"),
    ('"messages": [{}]', "messages[0].role"),
    ('"messages": [7]', "messages[0]"),
    ('"messages": [{"role": "user"}]', "messages[0].content"),
    ('"messages": [{"role": "user", "content": null}]', "messages[0].content"),
    ('"messages": [{"role": "user", "content": []}]', "messages[0].content"),
    ('"messages": [{"role": "wizard", "content": "x"}]', "messages[0].role"),
    (
        '"messages": [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}]',
        "messages[1].role",
    ),
    (
        '"messages": [{"role": "user", "content": [{"type": "image_url"}]}]',
        "messages[0].content[0].type",
    ),
    # CASES 20: lone surrogates.
    ('"messages": [{"role": "user", "content": "\\ud83d"}]', "messages[0].content"),
    ('"user": "\\udc97"', "user"),
    ('"stop": "\\udc97"', "stop"),
    ('"stop": ["a", "\\udc97"]', "stop[1]"),
    ('"model": "\\ud83d"', "model"),
    # What is not served, by name.
    ('"n": 9', "n"),
    ('"n": 0', "n"),
    ('"n": 1.5', "n"),
    ('"n": true', "n"),
    ('"tools": [{"type": "function"}]', "tools"),
    ('"functions": [{}]', "functions"),
    ('"tool_choice": "required"', "tool_choice"),
    ('"tool_choice": {"type": "function", "function": {"name": "f"}}', "tool_choice"),
    ('"function_call": {"name": "f"}', "function_call"),
    ('"modalities": ["text", "audio"]', "modalities"),
    ('"audio": {"voice": "alloy", "format": "mp3"}', "audio"),
    ('"web_search_options": {}', "web_search_options"),
    (
        '"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}]',
        "messages[0].tool_calls",
    ),
    ('"messages": [{"role": "tool", "content": "x"}]', "messages[0].role"),
    (
        '"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}',
        "response_format.type",
    ),
    ('"response_format": {"type": "json_object"}', "response_format.type"),
    ('"response_format": "json"', "response_format"),
    # Wrong types and ranges.
    ('"temperature": "hot"', "temperature"),
    ('"temperature": 2.1', "temperature"),
    ('"top_p": 0', "top_p"),
    ('"stop": [""]', "stop[0]"),
    ('"stop": 7', "stop"),
    ('"logit_bias": {"x": 1}', "logit_bias"),
    ('"logit_bias": {"5": 101}', "logit_bias.5"),
    ('"logit_bias": [1]', "logit_bias"),
    ('"seed": 0.5', "seed"),
    ('"logprobs": 3', "logprobs"),
    ('"logprobs": true, "top_logprobs": 21', "top_logprobs"),
    ('"top_logprobs": 2', "top_logprobs"),
    ('"stream": "yes"', "stream"),
    ('"stream_options": {"include_usage": true}', "stream_options"),
    ('"stream": true, "stream_options": {"include_usage": 1}', "stream_options.include_usage"),
]


@pytest.mark.parametrize(("fields", "field"), BAD_CHAT_FIELDS)
def test_bad_chat_field_is_named(fields: str, field: str) -> None:
    """CASES 13, 17, 19, 20: what is wrong is named by its path, in the client's words."""
    messages = "" if '"messages"' in fields else f'"messages": {json.dumps(HELLO)}, '
    refused = refusal(f"{{{messages}{fields}}}".encode())
    assert refused.field == field
    assert f"`{field}`" in refused.message


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ("{}", "prompt"),
        ('{"prompt": null}', "prompt"),
        ('{"prompt": ""}', "prompt"),
        ('{"prompt": []}', "prompt"),
        ('{"prompt": ["a", ""]}', "prompt"),
        ('{"prompt": ["a", []]}', "prompt[1]"),
        ('{"prompt": ["a", 1]}', "prompt[1]"),
        ('{"prompt": [[1], [-2]]}', "prompt[1][0]"),
        ('{"prompt": ["a", [["b"]]]}', "prompt[1][0]"),
        (f'{{"prompt": {json.dumps(["a"] * 65)}}}', "prompt"),
        (f'{{"prompt": {json.dumps(["a"] * 33)}, "n": 2}}', "n"),
        ('{"prompt": "a", "n": 2, "best_of": 1}', "best_of"),
        ('{"prompt": [-1]}', "prompt[0]"),
        ('{"prompt": [1, "a"]}', "prompt[1]"),
        ('{"prompt": [4294967296]}', "prompt[0]"),
        ('{"prompt": 7}', "prompt"),
        ('{"prompt": "a", "echo": true}', "echo"),
        ('{"prompt": "a", "best_of": 3}', "best_of"),
        ('{"prompt": "a", "suffix": "x"}', "suffix"),
        ('{"prompt": "a", "logprobs": true}', "logprobs"),
        ('{"prompt": "a", "logprobs": 21}', "logprobs"),
    ],
)
def test_bad_completion_field_is_named(fields: str, field: str) -> None:
    """The older endpoint is as strict as the newer one."""
    assert refusal(fields.encode(), read_completion).field == field


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'"x"',
        b"null",
        b"7",
        b'{"messages": [',
        b"\xff\xfe{}",
        '{"messages": []}'.encode("utf-16"),
        b"[" * 100_000,
        b"\x00\x01\x02",
    ],
)
@pytest.mark.parametrize("read", [read_chat, read_completion])
def test_no_json_object_is_refused(raw: bytes, read: Any) -> None:
    """CASES 22: what is no JSON object is a clear 400, never a crash."""
    assert "JSON object" in refusal(raw, read).message


def test_repeated_keys_are_tolerated() -> None:
    """A key given twice counts as given last, also inside a message."""
    body = b'{"n":2,"n":1,"messages":[{"role":"x","role":"user","content":"hi"}],"stream":true}'
    asked = read_chat(body, {})
    assert asked.request.messages == (ChatMessage("user", "hi"),)


@pytest.mark.parametrize("name", ["X-Expected-Tokens", "X-Max-Latency"])
@pytest.mark.parametrize("value", ["", "-1", "1.5", "many", "99999999999", "²"])
def test_bad_wish_header_is_named(name: str, value: str) -> None:
    """A wish in a header is an integer from 0."""
    with pytest.raises(SeedanceError) as refused:
        chat(headers={name: value})
    assert refused.value.field == name


def test_wish_header_out_of_range_is_named() -> None:
    """The range is judged where all ranges are, and named by the header."""
    with pytest.raises(SeedanceError) as refused:
        chat(headers={"X-Max-Latency": "9999999999"})
    assert refused.value.field == "X-Max-Latency"


def test_refusal_from_further_in_is_translated() -> None:
    """What an instance refuses is named as the client called it."""
    inner = SeedanceError(
        ErrorCode.BAD_REQUEST, "`max_tokens` must be from 1 to 3", field="max_tokens"
    )
    outer = chat(max_completion_tokens=5).in_clients_words(inner)
    assert (outer.field, outer.message) == (
        "max_completion_tokens",
        "`max_completion_tokens` must be from 1 to 3",
    )
    assert chat(max_tokens=5).in_clients_words(inner) is inner
