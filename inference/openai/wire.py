"""What an OpenAI-compatible server is asked, and how what it answers is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, NamedTuple

from inference.engine.runner import ModelInfo
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import GenerateRequest

__all__ = ["DONE", "Delta", "Upstream", "delta", "event_data", "refusal", "wish"]

EVENT_BYTES_MAX = 1024 * 1024
_TOKENS_MAX = 2**31 - 1
DONE = b"[DONE]"
# llama.cpp keeps seeds in 32 bits.
_SEED_MAX = 2**31 - 1
_RETRY_AFTER_S, _RETRY_AFTER_S_MAX = 1, 30
# What OpenAI's API has no word for goes under vLLM's and SGLang's names, and only when asked for.
_OF_REQUEST = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
_OF_SAMPLING = ("presence_penalty", "frequency_penalty", "logit_bias", "top_k", "min_p")

# What a server's status means to our caller. Its own words stay here: they may name hosts, paths and keys.
_REFUSED = (ErrorCode.BAD_REQUEST, "the model's server refused the request as it stands")
_BUSY = (ErrorCode.OVERLOADED, "the model's server has too much to do")
_AWAY = (ErrorCode.UNAVAILABLE, "the model's server does not answer as it should")
_STATUSES = {400: _REFUSED, 413: _REFUSED, 422: _REFUSED, 429: _BUSY, 529: _BUSY}
_TOO_LONG = (ErrorCode.CONTEXT_LENGTH_EXCEEDED, "the prompt is longer than the model's context")
_TOO_LONG_WORDS = (b"context_length", b"context length", b"context window", b"context size")


class Upstream(NamedTuple):
    """What the server calls its model, whether it can count with each event, and what we say of it."""

    model: str
    counting: bool
    info: ModelInfo


class Delta(NamedTuple):
    """One event of a stream; `counts` are tokens of the prompt, cached ones of these, and the answer's."""

    text: str = ""
    finish_reason: str | None = None
    counts: tuple[int, int, int] | None = None


def wish(request: GenerateRequest, model: str, *, counting: bool) -> tuple[str, dict[str, Any]]:
    """The path below the server's URL, and the body that asks for the request as a stream.

    `counting`: the server is one that tells usage with each event when asked to.
    """
    sampling = request.sampling
    options = {"include_usage": True} | ({"continuous_usage_stats": True} if counting else {})
    body = {"model": model, "stream": True, "stream_options": options}
    body |= {} if sampling.seed is None else {"seed": _seed(sampling.seed, sampling.choice)}
    body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    body |= {name: value for name in _OF_REQUEST if (value := getattr(request, name))}
    body |= {name: value for name in _OF_SAMPLING if (value := getattr(sampling, name))}
    if sampling.repetition_penalty != 1:
        body["repetition_penalty"] = sampling.repetition_penalty
    if request.messages:
        turns = [{"role": m.role, "content": m.content} for m in request.messages]
        return "chat/completions", body | {"messages": turns}
    return "completions", body | {"prompt": request.prompt or request.prompt_token_ids}


def _seed(seed: int, choice: int) -> int:
    """A function of both; for choice 0 the caller's own seed, where the server can hold it."""
    if choice == 0 and seed <= _SEED_MAX:
        return seed
    digest = hashlib.blake2s(f"{seed}/{choice}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & _SEED_MAX


async def event_data(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The data of each server-sent event, however its bytes were cut (WHATWG HTML, §9.2).

    Lines end with LF or CR LF. Raises `unavailable` for an event without end.
    """
    unread, data = b"", b""
    async for chunk in chunks:
        *lines, unread = (unread + chunk).split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r")
            if line.startswith(b"data:"):
                data += line[5:].strip()
            elif not line and data:
                yield data
                data = b""
        if len(unread) + len(data) > EVENT_BYTES_MAX:
            raise refusal(0)


def delta(data: bytes) -> Delta:
    """One event, of a chat or of a completion. Raises `unavailable` for what is none."""
    try:
        event = json.loads(data)
        choice = event["choices"][0] if event["choices"] else {}
        text = choice.get("text") or choice.get("delta", {}).get("content") or ""
        counts = _counts(event["usage"]) if event.get("usage") else None
        # Half a surrogate pair is no text.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return Delta(text, choice.get("finish_reason"), counts)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise refusal(0) from None


def _counts(usage: dict[str, Any]) -> tuple[int, int, int]:
    """`Delta.counts`. Raises `ValueError` for what cannot be: a bill would say it again."""
    prompt, answer = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    if not (0 <= prompt <= _TOKENS_MAX and 0 <= answer <= _TOKENS_MAX and cached >= 0):
        raise ValueError
    return prompt, min(cached, prompt), answer


def refusal(status: int, retry_after: str = "", said: bytes = b"") -> SeedanceError:
    """What a server's status, or that it says nothing (0), is to our caller."""
    code, message = _STATUSES.get(status, _AWAY)
    if code is ErrorCode.BAD_REQUEST:
        too_long = any(words in said.lower() for words in _TOO_LONG_WORDS)
        return SeedanceError(*(_TOO_LONG if too_long else _REFUSED))
    told_s = int(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0
    retry_after_s = min(told_s or _RETRY_AFTER_S, _RETRY_AFTER_S_MAX)
    return SeedanceError(code, message, retry_after_ms=retry_after_s * 1000)
