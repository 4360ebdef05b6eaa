"""JSON bodies as protobuf messages."""

from __future__ import annotations

from seedance.protocol.message_body import body_of, fill
from seedance.v2.frames_pb2 import Frame


def test_a_body_comes_back() -> None:
    """Nested objects, lists, maps, bytes; what the message has no field for is left out."""
    body = {
        "token": "x",
        "bytes": (1, 255),
        "logprob": -0.5,
        "top_logprobs": [{"token": "y", "bytes": [], "logprob": -1.0, "top_logprobs": []}],
    }
    message = Frame.Logprob()
    fill(message, {**body, "unknown": 1})
    assert body_of(message) == {**body, "bytes": [1, 255]}


def test_presence_is_kept() -> None:
    """A field that may be absent and is stays absent; one that is always there has its zero."""
    message = Frame.Generate()
    fill(message, {"top_k": 0, "logit_bias": {5: 1}})
    assert body_of(message) == {"top_k": 0, "logit_bias": {"5": 1}, "messages": [], "stop": []}
    assert body_of(Frame.Usage()) == {
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
    }


def test_an_empty_body_is_a_present_message() -> None:
    """`close` has no fields and is a frame all the same."""
    frame = Frame()
    fill(frame.close, {"type": "close"})
    assert frame.WhichOneof("kind") == "close"


def test_a_lone_surrogate_becomes_a_replacement() -> None:
    """As in a JSON message of the gateway (CASES 20)."""
    message = Frame.Session()
    fill(message, {"tenant": "a\ud83d", "gateways": ["b\ud83d"]})
    assert (message.tenant, list(message.gateways)) == ("a\ufffd", ["b\ufffd"])
