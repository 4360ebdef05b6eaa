"""What a caller may ask of a generation, declared once for both clients."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict
from urllib.parse import urlsplit, urlunsplit

from seedance.protocol.frames import Generate
from seedance.protocol.json_codec import generate_of

__all__ = ["ChatOptions", "Message", "endpoint", "generate_frame"]

# `{"role": "user", "content": "…"}`; content may be a list of text parts too.
Message = Mapping[str, Any]

_DEFAULT_PATH = "/v2/infer"
_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


class ChatOptions(TypedDict, total=False):
    """The fields of `generate` (contract §3); what is left out or None takes the server's default.

    `temperature` 0 is greedy. `stop` is one string or up to 16. `deadline_ms` orders work and ends
    nothing. `on_disconnect` `keep` (default) lets the generation outlive a lost connection.
    `traceparent` is a W3C trace context.
    """

    model: str | None
    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool | None
    logprobs: int | None
    priority: int | None
    deadline_ms: int | None
    expected_tokens: int | None
    max_latency_ms: int | None
    on_disconnect: str | None
    receipt: bool | None
    traceparent: str | None


def generate_frame(
    messages: Sequence[Message] | None, prompt: str | None, options: ChatOptions, *, stream: bool
) -> Generate:
    """The `generate` frame, with a fresh id, checked as the server will check it.

    Raises `TypeError` for an option that does not exist, `SeedanceError` (`bad_request`) for a
    value that is not allowed.
    """
    unknown = options.keys() - ChatOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"chat() has no option {', '.join(sorted(unknown))}")
    body: dict[str, Any] = {"messages": messages, "prompt": prompt, "stream": stream, **options}
    body = {name: value for name, value in body.items() if value is not None}
    if messages is not None:
        body["messages"] = [dict(message) for message in messages]
    bias = options.get("logit_bias")
    if bias is not None:
        body["logit_bias"] = {str(token_id): value for token_id, value in bias.items()}
    return replace(generate_of(body), id=secrets.token_urlsafe(12), bare=False)


def endpoint(url: str) -> str:
    """`url` as a WebSocket endpoint: `http` means `ws`, and no path means `/v2/infer`.

    Raises `ValueError` for anything else.
    """
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.netloc:
        raise ValueError(f"not a ws:// or wss:// URL: {url!r}")
    path = parts.path if parts.path.strip("/") else _DEFAULT_PATH
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))
