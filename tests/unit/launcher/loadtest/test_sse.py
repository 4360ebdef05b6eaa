"""The client of OpenAI's endpoint, byte by byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.loadtest.caller import Who
from launcher.loadtest.load import Load, target_of
from launcher.loadtest.prompts import Prompt, Prompts
from launcher.loadtest.sse import EventCaller
from launcher.loadtest.tally import Answer, Judge, Tally

PROMPT = Prompt([{"role": "user", "content": "x"}])
USAGE = {"choices": [], "usage": {"completion_tokens": 3}}


class _Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class _Asked:
    """A caller that has asked once."""

    def __init__(self, model: str = "") -> None:
        self.tally = Tally()
        self.transport = _Transport()
        target = target_of("http://h:1", model=model, keys=("k",))
        self.caller = EventCaller(target, Load(), Who("u", "k"))
        self.caller.connection_made(self.transport)
        self.caller.is_open = True
        self.ask()

    def ask(self) -> None:
        judge = Judge(Prompts([PROMPT], comparable=False))
        self.caller.ask(Answer(PROMPT, 0.0, self.tally, judge, lambda: None, 0.0))


def _delta(text: str | None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}], "id": "x", "error": None}


def _reply(*events: object, status: str = "200 OK", more: str = "") -> bytes:
    body = b"".join(
        b"data: " + (event.encode() if isinstance(event, str) else json.dumps(event).encode())
        + b"\r\n\r\n"
        for event in events
    )  # fmt: skip
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


WHOLE = _reply(_delta(None), _delta("é"), _delta("b"), USAGE, "[DONE]")


@pytest.mark.parametrize("cut", [1, 7, 10_000])
async def test_an_answer_is_read_however_it_is_cut(cut: int) -> None:
    """Deltas, the server's own count and the end, at any cut, on one connection for the next too."""
    asked = _Asked()
    for _ in range(2):
        for at in range(0, len(WHOLE), cut):
            asked.caller.data_received(WHOLE[at : at + cut])
        asked.ask()
    assert (asked.tally.answered, asked.tally.tokens, asked.tally.gap.count) == (2, 6, 2)
    assert not asked.transport.closed


async def test_the_request_is_openais() -> None:
    """Key, model when there is one, and a stream with its usage."""
    for model in ("", "m"):
        asked = _Asked(model)
        head, _, body = asked.transport.written.partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h:1\r\n")
        assert b"\r\nAuthorization: Bearer k" in head
        sent = json.loads(body)
        assert sent.get("model", "") == model
        assert sent["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (_reply(_delta("a")), "connection_lost"),
        (_reply(_delta("a"), {"error": {"code": "overloaded"}}), "overloaded"),
        (_reply({"error": "no"}), "error"),
        (_reply("not json"), "not_http"),
        (b"garbage\r\n\r\n", "not_http"),
        (b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n", "http_503"),
        (
            b'HTTP/1.1 429 X\r\nContent-Length: 34\r\n\r\n{"error": {"code": "rate_limited"}}'[:-1],
            "http_429",
        ),
    ],
)
async def test_what_goes_wrong_has_a_code(reply: bytes, code: str) -> None:
    """The server's own word where it says one, else the status, else what became of the connection."""
    asked = _Asked()
    asked.caller.data_received(reply)
    if asked.transport.closed:
        asked.caller.connection_lost(None)
    assert dict(asked.tally.errors) == {code: 1}


async def test_a_refusal_says_its_code() -> None:
    """A JSON body with OpenAI's `code`."""
    asked = _Asked()
    body = b'{"error": {"code": "rate_limited"}}'
    head = f"HTTP/1.1 429 X\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    asked.caller.data_received(head + body)
    assert dict(asked.tally.errors) == {"rate_limited": 1}


async def test_a_connection_that_is_not_kept_is_dialled_again() -> None:
    """`Connection: close` behind a whole answer is no error; what is asked next waits."""
    asked = _Asked()
    asked.caller.data_received(_reply(_delta("a"), "[DONE]", more="Connection: close\r\n"))
    assert not asked.caller.is_open
    asked.caller.connection_lost(None)
    assert (asked.tally.answered, dict(asked.tally.errors)) == (1, {})
