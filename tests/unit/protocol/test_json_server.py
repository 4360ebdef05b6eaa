"""Server frames in JSON, both ways (contract §3)."""

from __future__ import annotations

import json

import pytest

from seedance.protocol.errors import ErrorCode, ProtocolFault
from seedance.protocol.frames import Done, ErrorFrame, Timing, Token, TokenLogprob, Usage
from seedance.protocol.json_codec import decode_server, encode_server
from seedance.protocol.json_server import server_body


def test_token_frames_take_the_contracts_names() -> None:
    """A token frame is exactly the contract's fields, `tokens` left out when it is one."""
    token = Token('a"b', 4, "é\n\u2028\x00", 1786580000000)
    assert json.loads(encode_server(token, 7)) == {
        "type": "token",
        "seq": 7,
        "id": 'a"b',
        "offset": 4,
        "delta": "é\n\u2028\x00",
        "timestamp": 1786580000000,
    }
    assert json.loads(encode_server(Token("a", 0, "x", 1, tokens=3)))["tokens"] == 3


def test_token_and_generic_encoding_agree() -> None:
    """The hand-made encoding of a token is the generic one, byte for byte."""
    for token in (Token("a", 0, "x", 1), Token("\u4f60", 5, '"\\\t\x7f', 2, tokens=4)):
        body = server_body(token, 3)
        assert encode_server(token, 3) == json.dumps(
            body, ensure_ascii=False, separators=(",", ":")
        )


def test_no_answer_holds_a_lone_surrogate() -> None:
    """CASES 20: whatever comes through, what leaves can be encoded as UTF-8."""
    for frame in (
        Token("a", 0, "x\ud83d", 1),
        ErrorFrame(ErrorCode.MODEL_NOT_FOUND, "no model \udc97", retryable=False),
    ):
        assert "\ufffd" in encode_server(frame, 1).encode().decode()


def test_a_logprob_of_never_is_still_json() -> None:
    """JSON has no infinity: an impossible token's log-probability is sent as OpenAI does."""
    entry = TokenLogprob("x", (120,), float("-inf"))
    body = json.loads(encode_server(Token("a", 0, "x", 1, logprobs=(entry,)), 1))
    assert body["logprobs"] == [{"token": "x", "bytes": [120], "logprob": -9999.0}]


def test_done_says_what_is_billed_and_where_the_time_went() -> None:
    """`done` holds the total beside its parts, and times to the microsecond."""
    done = Done("a", "stop", Usage(5, 2, 7), Timing(total_ms=1.23456), text="hi")
    body = json.loads(encode_server(done, 9))
    assert body["usage"] == {
        "prompt_tokens": 5,
        "cached_tokens": 2,
        "completion_tokens": 7,
        "total_tokens": 12,
    }
    assert body["timing"]["total_ms"] == 1.235
    assert body["text"] == "hi"
    assert "receipt" not in body


@pytest.mark.parametrize(
    "message",
    [
        "[]",
        "{}",
        '{"type":"novel"}',
        '{"type":"token","id":"a"}',
        '{"type":"token","seq":"1","id":"a","offset":0,"delta":"x","timestamp":1}',
        '{"type":"token","seq":1,"id":"a","offset":"0","delta":"x","timestamp":1}',
        '{"type":"session","heartbeat":1}',
    ],
)
def test_what_no_server_says_is_a_fault(message: str) -> None:
    """A client closes on a server that does not speak the contract, instead of guessing."""
    with pytest.raises(ProtocolFault):
        decode_server(message)


def test_a_newer_servers_error_code_is_still_an_error() -> None:
    """An error code from the future is `internal`, with its own advice whether to retry."""
    frame, seq = decode_server(
        '{"type":"error","seq":4,"code":"too_hot","message":"m","retryable":true,"new":1}'
    )
    assert (frame, seq) == (ErrorFrame(ErrorCode.INTERNAL, "m", retryable=True), 4)
