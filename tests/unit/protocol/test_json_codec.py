"""JSON frames, strict towards clients (contract §3)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seedance.protocol.errors import CloseCode, ErrorCode, ProtocolFault, SeedanceError
from seedance.protocol.frames import (
    Ack,
    Cancel,
    Close,
    ErrorFrame,
    Generate,
    Ping,
    Pong,
    Resume,
)
from seedance.protocol.json_codec import (
    decode_client,
    encode_client,
    encode_server,
)
from seedance.protocol.request import ChatMessage, GenerateRequest, Sampling

HI = '"messages":[{"role":"user","content":"hi"}]'


def generate(extra: str) -> str:
    return f'{{"type":"generate","id":"g1",{HI},{extra}}}'


def refusal(message: str) -> SeedanceError:
    with pytest.raises(SeedanceError) as caught:
        decode_client(message)
    assert caught.value.code is ErrorCode.BAD_REQUEST
    return caught.value


WHOLE: dict[str, Any] = {
    "type": "generate",
    "id": "g1",
    "model": "script",
    "messages": [
        {"role": "system", "content": "brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
    ],
    "stream": False,
    "max_tokens": 9,
    "min_tokens": 2,
    "temperature": 0.3,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"17": -100, "0": 2.5},
    "seed": 2**63 - 1,
    "stop": ["x", "y"],
    "ignore_eos": True,
    "logprobs": 3,
    "priority": 0,
    "deadline_ms": 1500,
    "expected_tokens": 7,
    "max_latency_ms": 80,
    "on_disconnect": "cancel",
    "receipt": True,
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


def test_every_field_of_generate_is_read() -> None:
    """Each field of the contract's `generate` arrives where the engine looks for it."""
    assert decode_client(json.dumps(WHOLE)) == Generate(
        id="g1",
        request=GenerateRequest(
            model="script",
            messages=(ChatMessage("system", "brief"), ChatMessage("user", "ab")),
            sampling=Sampling(
                temperature=0.3,
                top_p=0.9,
                top_k=40,
                min_p=0.05,
                presence_penalty=-0.5,
                frequency_penalty=0.5,
                repetition_penalty=1.1,
                logit_bias={17: -100, 0: 2.5},
                seed=2**63 - 1,
                logprobs=3,
            ),
            max_tokens=9,
            min_tokens=2,
            stop=("x", "y"),
            ignore_eos=True,
            priority=0,
            deadline_ms=1500,
            expected_tokens=7,
            max_latency_ms=80,
        ),
        stream=False,
        on_disconnect="cancel",
        receipt=True,
        traceparent=WHOLE["traceparent"],
    )


def test_bare_form_is_a_generate() -> None:
    """An object with messages or prompt and no type is a `generate` without an id."""
    assert decode_client(f'{{"model":"m","stream":true,{HI}}}') == Generate(
        id=None,
        request=GenerateRequest(model="m", messages=(ChatMessage("user", "hi"),)),
        bare=True,
    )
    prompt = decode_client('{"prompt":"once"}')
    assert isinstance(prompt, Generate)
    assert (prompt.bare, prompt.request.prompt) == (True, "once")


@pytest.mark.parametrize(
    ("message", "frame"),
    [
        ('{"type":"ack","seq":8}', Ack(8)),
        ('{"type": "ack", "seq": 8}', Ack(8)),
        ('{"seq":8,"type":"ack","sack":[[10,10],[12,19]]}', Ack(8, ((10, 10), (12, 19)))),
        ('{"type":"cancel","id":"é"}', Cancel("é")),
        (
            '{"type":"resume","session":"s","token":"t","last_seq":0,"offsets":{"a":-1,"b":7}}',
            Resume("s", "t", 0, {"a": -1, "b": 7}),
        ),
        ('{"type":"ping","t":1.5}', Ping(1.5)),
        ('{"type":"ping","t":-1e300}', Ping(-1e300)),
        ('{"type":"ping","t":18446744073709551616}', Ping(2**64)),
        ('{"type":"ping"}', Ping(None)),
        ('{"type":"pong","t":17}', Pong(17)),
        ('{"type":"close"}', Close()),
    ],
)
def test_other_client_frames(message: str, frame: object) -> None:
    """Every other client frame of the contract is read."""
    assert decode_client(message) == frame


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty"])
@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_no_number_escapes_the_reals(field: str, literal: str) -> None:
    """CASES 13: what is not a finite number is refused by its field's name, in valid JSON."""
    error = refusal(generate(f'"{field}":{literal}'))
    assert (error.field, error.stream_id) == (field, "g1")
    answer = encode_server(ErrorFrame(error.code, error.message, retryable=False, field=field))
    assert json.loads(answer, parse_constant=pytest.fail)["field"] == field


@pytest.mark.parametrize(("literal", "value"), [("1", 1), ("2147483647", 2**31 - 1)])
def test_max_tokens_in_range(literal: str, value: int) -> None:
    """CASES 17: the whole range of `max_tokens` is taken, and left out means the context's rest."""
    frame = decode_client(generate(f'"max_tokens":{literal}'))
    assert isinstance(frame, Generate)
    assert frame.request.max_tokens == value
    absent = decode_client(f"{{{HI}}}")
    assert isinstance(absent, Generate)
    assert absent.request.max_tokens is None


@pytest.mark.parametrize(
    "literal",
    ["0", "-1", str(2**31), str(2**63), "9" * 5000, "1.0", "1e3", "true", "null", '"1"', "[1]"],
)
def test_max_tokens_out_of_range(literal: str) -> None:
    """CASES 17: zero, negative, too large, and everything but an integer is refused."""
    assert refusal(generate(f'"max_tokens":{literal}')).field == "max_tokens"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("[]", "messages"),
        ("[{}]", "messages[0].role"),
        ('[{"role":"user"}]', "messages[0].content"),
        ('[{"role":"user","content":null}]', "messages[0].content"),
        ('[{"role":"user","content":[]}]', "messages[0].content"),
        ('[{"role":"user","content":[{"type":"image_url"}]}]', "messages[0].content[0].type"),
        ('[{"role":"user","content":[{"type":"text"}]}]', "messages[0].content[0].text"),
        ('[{"role":"wizard","content":"x"}]', "messages[0].role"),
        ('[{"role":1,"content":"x"}]', "messages[0].role"),
        (
            '[{"role":"system","content":"x"},{"role":"system","content":"y"}]',
            "messages[1].role",
        ),
        ("{}", "messages"),
        ("null", "messages"),
        ("[1]", "messages[0]"),
        ('[{"role":"user","content":"x","content":"y"}]', "messages[0].content"),
    ],
)
def test_messages_name_their_path(messages: str, field: str) -> None:
    """CASES 19: each malformed conversation is refused with the path to the field at fault."""
    assert refusal(f'{{"type":"generate","messages":{messages}}}').field == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (r'{"messages":[{"role":"user","content":"\ud83d"}]}', "messages[0].content"),
        (r'{"prompt":"\udc97"}', "prompt"),
        (r'{"prompt":"x","stop":"a\ud83d"}', "stop"),
        (r'{"prompt":"x","stop":["\udc97"]}', "stop[0]"),
        (r'{"prompt":"x","model":"\ud83d"}', "model"),
        (r'{"prompt":"x","id":"\ud83d"}', "id"),
        (r'{"prompt":"x","traceparent":"\ud83d"}', "traceparent"),
        (r'{"type":"cancel","id":"\ud83d"}', "id"),
    ],
)
def test_lone_surrogates_are_refused(message: str, field: str) -> None:
    """CASES 20: half a surrogate pair is refused where it enters."""
    assert refusal(message).field == field


def test_a_whole_surrogate_pair_is_a_character() -> None:
    """CASES 20, the other side: an escaped pair is an ordinary character."""
    frame = decode_client(r'{"prompt":"\ud83d\ude01"}')
    assert isinstance(frame, Generate)
    assert frame.request.prompt == "\N{GRINNING FACE WITH SMILING EYES}"


@pytest.mark.parametrize(
    "message",
    ["", "[]", '"x"', "null", "17", '{"type":', "{'a':1}", '{"a":1}{', "[" * 100_000, "\ufeff{}"],
)
def test_what_is_no_object_ends_the_connection(message: str) -> None:
    """CASES 22: what is not one JSON object is a protocol fault with close code 4400."""
    with pytest.raises(ProtocolFault) as caught:
        decode_client(message)
    assert caught.value.close_code is CloseCode.PROTOCOL_ERROR
    assert len(caught.value.message.encode()) <= 123


def _resume_with(offsets: dict[str, int]) -> str:
    body = {"type": "resume", "session": "s", "token": "t", "last_seq": 0, "offsets": offsets}
    return json.dumps(body)


REFUSED = [
    ("{}", "type"),
    ('{"type":null}', "type"),
    ('{"type":"generat"}', "type"),
    ('{"type":"token"}', "type"),
    ('{"type":"ack"}', "seq"),
    ('{"type":"ack","seq":0}', "seq"),
    ('{"type":"ack","seq":"1"}', "seq"),
    ('{"type":"ack","seq":true}', "seq"),
    ('{"type":"ack","seq":9223372036854775808}', "seq"),
    ('{"type":"ack","seq":1,"sack":[[3,2]]}', "sack[0]"),
    ('{"type":"ack","seq":1,"sack":[[3]]}', "sack[0]"),
    ('{"type":"ack","seq":1,"sack":[3]}', "sack[0]"),
    ('{"type":"ack","seq":1,"sack":[' + ",".join(["[3,3]"] * 65) + "]}", "sack"),
    # So many are not even read.
    ('{"type":"ack","seq":1,"sack":[' + ",".join(["3"] * 65) + "]}", "sack"),
    ('{"type":"cancel"}', "id"),
    ('{"type":"cancel","id":""}', "id"),
    ('{"type":"generate","prompt":"x","id":"a\\u0000b"}', "id"),
    ('{"type":"cancel","id":"' + "x" * 65 + '"}', "id"),
    ('{"type":"resume","token":"t","last_seq":0,"offsets":{}}', "session"),
    ('{"type":"resume","session":"s","last_seq":0,"offsets":{}}', "token"),
    ('{"type":"resume","session":"s","token":"t","offsets":{}}', "last_seq"),
    ('{"type":"resume","session":"s","token":"t","last_seq":-1,"offsets":{}}', "last_seq"),
    ('{"type":"resume","session":"s","token":"t","last_seq":0}', "offsets"),
    (
        '{"type":"resume","session":"s","token":"t","last_seq":0,"offsets":{"a":-2}}',
        "offsets.a",
    ),
    (_resume_with({str(n): 1 for n in range(64 + 1024 + 1)}), "offsets"),
    (_resume_with({"x" * 65: 1}), "offsets"),
    ('{"type":"ping","t":"now"}', "t"),
    ('{"type":"ping","t":NaN}', "t"),
    ('{"type":"generate"}', "messages"),
    ('{"prompt":""}', "prompt"),
    ('{"prompt":"x","messages":[{"role":"user","content":"y"}]}', "messages"),
    ('{"prompt":"x","temperature":2.1}', "temperature"),
    ('{"prompt":"x","top_p":0}', "top_p"),
    ('{"prompt":"x","top_k":-1}', "top_k"),
    ('{"prompt":"x","seed":-1}', "seed"),
    ('{"prompt":"x","seed":9223372036854775808}', "seed"),
    ('{"prompt":"x","logprobs":21}', "logprobs"),
    ('{"prompt":"x","logprobs":true}', "logprobs"),
    ('{"prompt":"x","priority":10}', "priority"),
    ('{"prompt":"x","stream":"yes"}', "stream"),
    ('{"prompt":"x","stream":1}', "stream"),
    ('{"prompt":"x","on_disconnect":"stay"}', "on_disconnect"),
    ('{"prompt":"x","stop":[""]}', "stop[0]"),
    ('{"prompt":"x","stop":1}', "stop"),
    ('{"prompt":"x","stop":' + json.dumps(["s"] * 17) + "}", "stop"),
    ('{"prompt":"x","logit_bias":[]}', "logit_bias"),
    ('{"prompt":"x","logit_bias":{"a":1}}', "logit_bias"),
    ('{"prompt":"x","logit_bias":{"01":1}}', "logit_bias"),
    ('{"prompt":"x","logit_bias":{"1":101}}', "logit_bias.1"),
    ('{"prompt":"x","logit_bias":{"1":1,"1":2}}', "logit_bias.1"),
    ('{"prompt":"x","seed":1,"seed":2}', "seed"),
    ('{"prompt":"x","unknown":1,"unknown":2}', "unknown"),
]


@pytest.mark.parametrize(("message", "field"), REFUSED)
def test_each_refusal_names_its_field(message: str, field: str) -> None:
    """Unknown type, wrong type, missing field, out of range, repeated key: named by the field."""
    assert refusal(message).field == field


def test_refusals_name_the_stream_where_it_could_be_read() -> None:
    """The error frame can name the stream, unless the id itself was at fault."""
    assert refusal('{"type":"generate","id":"a","prompt":""}').stream_id == "a"
    assert refusal('{"type":"generate","id":7,"prompt":"x"}').stream_id is None


def test_unknown_fields_are_ignored_whatever_they_hold() -> None:
    """A field that the contract does not know harms nobody, even where its value is absurd."""
    frame = decode_client(
        r'{"prompt":"x","user":"\ud83d","deep":{"a":NaN},"big":' + "9" * 9999 + "}"
    )
    assert frame == Generate(id=None, request=GenerateRequest(prompt="x"), bare=True)
    assert decode_client('{"type":"cancel","id":"a","id":"b"}') == Cancel("b")


def test_a_caller_has_no_say_in_whose_cache_is_asked() -> None:
    """CASES 80: a salt or a tenant of the caller's own making is a field like any unknown one."""
    frame = decode_client('{"prompt":"x","cache_salt":"a","salt":"mesh/a","tenant":"a"}')
    assert frame == Generate(id=None, request=GenerateRequest(prompt="x"), bare=True)


def test_a_key_of_the_peers_making_is_not_echoed_at_length() -> None:
    """An answer that names a repeated key stays short, however long the key."""
    key = "k" * 100_000
    assert len(refusal(f'{{"prompt":"x","{key}":1,"{key}":2}}').message) < 200


def test_encoded_requests_leave_defaults_out() -> None:
    """A plain request is a short message."""
    frame = Generate("g", GenerateRequest(prompt="x"))
    assert encode_client(frame) == '{"type":"generate","id":"g","prompt":"x"}'


@pytest.mark.parametrize(("logprobs", "most"), [(0, 65_536), (20, 3_120)])
def test_log_probabilities_in_one_frame_have_a_bound(logprobs: int, most: int) -> None:
    """With `stream: false` they are all in `done`: what no SDK could take is refused before it is computed."""
    ask = {"prompt": "x", "stream": False, "logprobs": logprobs}
    for field in ("max_tokens", "min_tokens"):
        with pytest.raises(SeedanceError) as refused:
            decode_client(json.dumps({**ask, field: most + 1}))
        assert refused.value.field == "max_tokens"
        assert f"from 1 to {most} with `stream: false`" in refused.value.message
    for allowed in ({"max_tokens": most}, {}, {"stream": True, "max_tokens": most + 1}):
        assert isinstance(decode_client(json.dumps({**ask, **allowed})), Generate)
