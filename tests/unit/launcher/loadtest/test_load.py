"""What a URL means."""

from __future__ import annotations

import pytest

from launcher.loadtest.load import Face, target_of


@pytest.mark.parametrize(
    ("url", "face", "port", "path", "tls"),
    [
        ("ws://h:1", Face.WEBSOCKET, 1, "/v2/infer", False),
        ("wss://h/v1/chat", Face.WEBSOCKET, 443, "/v1/chat", True),
        ("http://h:2/", Face.SSE, 2, "/v1/chat/completions", False),
        ("https://h/openai/v1", Face.SSE, 443, "/openai/v1/chat/completions", True),
        ("http://h/x/v1/chat/completions", Face.SSE, 80, "/x/v1/chat/completions", False),
        ("h:8000", Face.SSE, 8000, "/v1/chat/completions", False),
        ("grpc://h", Face.GRPC, 50051, "", False),
    ],
)
def test_the_scheme_says_the_face(url: str, face: Face, port: int, path: str, tls: bool) -> None:
    """A WebSocket, OpenAI's API or gRPC; OpenAI base URLs are completed as its SDKs do."""
    target = target_of(url)
    assert (target.face, target.port, target.path, target.tls) == (face, port, path, tls)


@pytest.mark.parametrize("url", ["ftp://h", "ws://", "://", ""])
def test_what_is_no_target_says_what_to_write(url: str) -> None:
    """An unknown scheme or a missing host names the three forms."""
    with pytest.raises(ValueError, match="grpc://HOST:PORT"):
        target_of(url)


def test_a_table_says_how_it_was_spoken_to() -> None:
    """A target's name has its address and the subprotocol."""
    assert target_of("ws://h:1", subprotocol="seedance.v2.proto").name == "h:1 (websocket, proto)"
    assert target_of("ws://h:1").name == "h:1 (websocket, simple client)"
    assert target_of("http://h:1").name == "h:1 (sse)"
