"""What OpenAI-shaped bodies ask for: strict on what is known, deaf to what is not.

`null` means "left out" for every optional field, as OpenAI's own clients send it. Nothing is
silently done otherwise than asked: what changes an answer and is not served (tools, JSON mode) is
refused by name; what does not (`store`, `metadata`, `service_tier`, …) is passed over, as any
field that is not known. Two choices of ours, for one behaviour on every way into the mesh: without
`max_tokens` an answer may fill the context, also on `/v1/completions`; text parts are joined as
they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seedance.protocol import json_fields as fields
from seedance.protocol.errors import ErrorCode, ProtocolFault, SeedanceError
from seedance.protocol.request import (
    LIMITS,
    ChatMessage,
    GenerateRequest,
    Sampling,
    bad_field,
    check_request,
)

__all__ = ["EXPECTED_TOKENS_HEADER", "MAX_LATENCY_HEADER", "Asked", "read_chat", "read_completion"]

EXPECTED_TOKENS_HEADER = "X-Expected-Tokens"
MAX_LATENCY_HEADER = "X-Max-Latency"

# OpenAI's own word for `system` on newer models.
_DEVELOPER_ROLE = "developer"
_SEED_MASK = 2**63 - 1
# Of one prompt.
CHOICES_MAX = 8
# Of all prompts together: each is a generation of its own, and a session has as many at most (§2).
GENERATIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """What to generate, in how many `choices` for each request, and how to answer.

    `more`: the further requests of a body with several prompts; they differ in the prompt alone.
    `user` is what keeps a user's requests together. `names` says what the client calls a field of the request, where that differs: a refusal that
    comes from further in is translated with it.
    """

    request: GenerateRequest
    more: tuple[GenerateRequest, ...] = ()
    choices: int = 1
    stream: bool = False
    include_usage: bool = False
    receipt: bool = False
    user: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def requests(self) -> tuple[GenerateRequest, ...]:
        """All requests, a prompt each."""
        return (self.request, *self.more)

    def in_clients_words(self, error: SeedanceError) -> SeedanceError:
        """The error, with the client's name for the field at fault."""
        name = self.names.get(error.field or "")
        if name is None:
            return error
        message = error.message.replace(f"`{error.field}`", f"`{name}`")
        return SeedanceError(error.code, message, field=name, retry_after_ms=error.retry_after_ms)


# ---------------------------------------------------------------- readers of one field


def _object(path: str, value: Any) -> dict[str, Any]:
    # Not `fields.record`: OpenAI's clients get away with a key given twice, the last one counts.
    if not isinstance(value, dict):
        raise bad_field(path, "an object")
    return value


def _part(path: str, value: Any) -> str:
    part = _object(path, value)
    fields.required(part, "type", fields.choice("text"), f"{path}.")
    return str(fields.required(part, "text", fields.text, f"{path}."))


def _content(path: str, value: Any) -> str:
    if isinstance(value, str):
        return fields.text(path, value)
    if not isinstance(value, list) or not value:
        raise bad_field(path, "a string or a list of text parts")
    return "".join(fields.items(_part)(path, value))


def _role(path: str, value: Any) -> str:
    role = fields.text(path, value)
    return "system" if role == _DEVELOPER_ROLE else role


def _message(path: str, value: Any) -> ChatMessage:
    message = _object(path, value)
    for name in ("tool_calls", "function_call"):
        if message.get(name):
            _no_tools(f"{path}.{name}", message[name])
    return ChatMessage(
        role=fields.required(message, "role", _role, f"{path}."),
        content=fields.required(message, "content", _content, f"{path}."),
    )


def _stop(path: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (fields.text(path, value),)
    if not isinstance(value, list):
        raise bad_field(path, "a string or a list of strings")
    return tuple(fields.items(fields.text)(path, value))


def _logit_bias(path: str, value: Any) -> dict[int, float]:
    biases = {}
    for key, bias in _object(path, value).items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):  # noqa: PLR2004 - of 2**31
            raise bad_field(path, "an object whose keys are token ids")
        biases[int(key)] = fields.number(f"{path}.{key}", bias)
    return biases


def _seed(path: str, value: Any) -> int:
    # OpenAI allows the whole signed range; the mesh knows seeds from 0 on.
    return fields.integer(path, value) & _SEED_MASK


def _choices(path: str, value: Any) -> int:
    if not 1 <= fields.integer(path, value) <= CHOICES_MAX:
        raise bad_field(path, f"an integer from 1 to {CHOICES_MAX}")
    return int(value)


def _token_id(path: str, value: Any) -> int:
    if not 0 <= fields.integer(path, value) <= LIMITS.tokens_max:
        raise bad_field(path, "a token id")
    return int(value)


def _prompt(path: str, value: Any) -> GenerateRequest:
    if isinstance(value, str):
        return GenerateRequest(prompt=fields.text(path, value))
    if not isinstance(value, list) or not value:
        raise bad_field(path, "a string or a list of token ids")
    return GenerateRequest(prompt_token_ids=fields.items(_token_id)(path, value))


def _prompts(path: str, value: Any) -> tuple[GenerateRequest, ...]:
    """A text, a list of token ids, or a list of either."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > GENERATIONS_MAX:
            raise bad_field(path, f"at most {GENERATIONS_MAX} prompts")
        return tuple(fields.items(_prompt)(path, value))
    return (_prompt(path, value),)


# ---------------------------------------------------------------- what is not served


def _only(*allowed: Any) -> Callable[[str, Any], None]:
    def check(path: str, value: Any) -> None:
        if not any(type(value) is type(one) and value == one for one in allowed):
            shown = " or ".join(str(one).lower() for one in allowed)
            raise bad_field(path, f"{shown}: nothing else is served yet")

    return check


def _no_tools(path: str, value: Any) -> None:
    if value != []:
        raise bad_field(path, "left out: tools are not served yet")


def _left_out(path: str, _value: Any) -> None:
    raise bad_field(path, "left out: it is not served yet")


def _plain_text(path: str, value: Any) -> None:
    fields.required(_object(path, value), "type", _only("text"), f"{path}.")


_REFUSED: dict[str, fields.Reader] = {
    "echo": _only(False),
    "suffix": _only(""),
    "tools": _no_tools,
    "functions": _no_tools,
    "tool_choice": _only("none", "auto"),
    "function_call": _only("none", "auto"),
    "modalities": _only(["text"]),
    "audio": _left_out,
    "moderation": _left_out,
    "web_search_options": _left_out,
    "response_format": _plain_text,
}

# ---------------------------------------------------------------- whole bodies

_SAMPLING: dict[str, fields.Reader] = {
    "temperature": fields.number,
    "top_p": fields.number,
    "top_k": fields.integer,
    "min_p": fields.number,
    "presence_penalty": fields.number,
    "frequency_penalty": fields.number,
    "repetition_penalty": fields.number,
    "logit_bias": _logit_bias,
    "seed": _seed,
}
_REQUEST: dict[str, fields.Reader] = {
    "model": fields.text,
    "max_tokens": fields.integer,
    "min_tokens": fields.integer,
    "stop": _stop,
    "ignore_eos": fields.flag,
    "priority": fields.integer,
    "deadline_ms": fields.integer,
}


def _body(raw: bytes) -> dict[str, Any]:
    try:
        body = fields.parse_object(raw.decode())
    except (ProtocolFault, UnicodeDecodeError):
        raise SeedanceError(
            ErrorCode.BAD_REQUEST, "the body must be one JSON object in UTF-8"
        ) from None
    return {name: value for name, value in body.items() if value is not None}


def _header(headers: Mapping[str, str], name: str) -> int:
    value = headers.get(name, "0")
    if not (value.isascii() and value.isdigit() and len(value) <= 10):  # noqa: PLR2004 - of 2**31
        raise bad_field(name, "an integer from 0")
    return int(value)


def _parallel(body: dict[str, Any], prompts: int) -> int:
    """How many choices each prompt gets: `n`, bounded."""
    choices = _choices("n", body["n"]) if "n" in body else 1
    if choices * prompts > GENERATIONS_MAX:
        allowed = f"at most {GENERATIONS_MAX // prompts}: {prompts} prompts have {GENERATIONS_MAX}"
        raise bad_field("n", f"{allowed} choices at most")
    if "best_of" in body and fields.integer("best_of", body["best_of"]) != choices:
        raise bad_field("best_of", f"`n`, {choices}: nothing else is served yet")
    return choices


def _wants_usage(body: dict[str, Any], *, stream: bool) -> bool:
    options = _object("stream_options", body.get("stream_options", {}))
    if options and not stream:
        raise bad_field("stream_options", "left out when `stream` is not true")
    wanted = options.get("include_usage")
    return wanted is not None and fields.flag("stream_options.include_usage", wanted)


def _wants_receipt(body: dict[str, Any], prompts: int) -> bool:
    """An extension: the mesh's signature under text and usage, which are one answer's."""
    wanted = "receipt" in body and fields.flag("receipt", body["receipt"])
    if wanted and (prompts > 1 or body.get("n", 1) != 1):
        raise bad_field("receipt", "left out when there is more than one answer")
    return wanted


def _user(body: dict[str, Any]) -> str | None:
    """Who it is for: OpenAI asks for prompts that begin alike to be told by `prompt_cache_key`."""
    given = fields.read(body, {"prompt_cache_key": fields.text, "user": fields.text})
    return next(iter(given.values()), None)


def _asked(
    body: dict[str, Any],
    headers: Mapping[str, str],
    prompts: Sequence[GenerateRequest],
    logprobs: int | None,
    names: dict[str, str],
) -> Asked:
    for name, check in _REFUSED.items():
        if name in body:
            check(name, body[name])
    stream = "stream" in body and fields.flag("stream", body["stream"])
    common: dict[str, Any] = {
        "sampling": Sampling(logprobs=logprobs, **fields.read(body, _SAMPLING)),
        "expected_tokens": _header(headers, EXPECTED_TOKENS_HEADER),
        "max_latency_ms": _header(headers, MAX_LATENCY_HEADER),
        **fields.read(body, _REQUEST),
    }
    first, *more = (replace(prompt, **common) for prompt in prompts)
    asked = Asked(
        first,
        tuple(more),
        choices=_parallel(body, len(prompts)),
        stream=stream,
        include_usage=_wants_usage(body, stream=stream),
        receipt=_wants_receipt(body, len(prompts)),
        user=_user(body),
        names={
            **names,
            "expected_tokens": EXPECTED_TOKENS_HEADER,
            "max_latency_ms": MAX_LATENCY_HEADER,
        },
    )
    try:
        for request in asked.requests:
            check_request(request)
    except SeedanceError as error:
        raise asked.in_clients_words(error) from None
    return asked


def read_chat(raw: bytes, headers: Mapping[str, str]) -> Asked:
    """The body of `POST /v1/chat/completions`. Raises `SeedanceError` naming the field at fault."""
    body = _body(raw)
    messages = fields.required(body, "messages", fields.items(_message))
    names = {"logprobs": "top_logprobs"}
    if "max_completion_tokens" in body:  # the newer word wins over `max_tokens`
        body["max_tokens"] = fields.integer("max_completion_tokens", body["max_completion_tokens"])
        names["max_tokens"] = "max_completion_tokens"
    wanted = "logprobs" in body and fields.flag("logprobs", body["logprobs"])
    top = fields.integer("top_logprobs", body["top_logprobs"]) if "top_logprobs" in body else 0
    if top and not wanted:
        raise bad_field("top_logprobs", "left out when `logprobs` is not true")
    logprobs = top if wanted else None
    return _asked(body, headers, [GenerateRequest(messages=messages)], logprobs, names)


def read_completion(raw: bytes, headers: Mapping[str, str]) -> Asked:
    """The body of `POST /v1/completions`. Raises `SeedanceError` naming the field at fault."""
    body = _body(raw)
    prompts = fields.required(body, "prompt", _prompts)
    logprobs = fields.integer("logprobs", body["logprobs"]) if "logprobs" in body else None
    return _asked(body, headers, prompts, logprobs, {"prompt_token_ids": "prompt"})
