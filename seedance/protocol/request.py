"""What to generate: the request that every way into the mesh is translated to (contract §3).

WebSocket, OpenAI's HTTP shape and gRPC all end in one `GenerateRequest`, checked by one
`check_request`. What passed it cannot raise further in, except for what only the model knows
(vocabulary, context length): that is checked by the engine at admission.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from seedance.protocol.errors import ErrorCode, SeedanceError

__all__ = [
    "LIMITS",
    "ChatMessage",
    "GenerateRequest",
    "Limits",
    "Sampling",
    "bad_field",
    "check_in_one_frame",
    "check_request",
    "within_quota",
]

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Limits:
    """Named bounds of a request; all inclusive."""

    stop_strings_max: int = 16
    logprobs_max: int = 20
    priority_max: int = 9
    temperature_max: float = 2.0
    penalty_abs_max: float = 2.0
    logit_bias_abs_max: float = 100.0
    logit_bias_entries_max: int = 1024
    tokens_max: int = 2**31 - 1
    duration_ms_max: int = 2**31 - 1
    seed_max: int = 2**63 - 1
    messages_max: int = 4096
    id_length_max: int = 64
    # Log-probabilities in one frame: some 100 bytes each, where SDKs take frames of 16 MiB.
    whole_logprobs_max: int = 2**16


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen: a pure function of (logits, seed, choice, position).

    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 and `min_p` 0 keep every token; `logprobs`
    None reports none, 0 reports the chosen token's alone.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None
    choice: int = 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A generation's whole wish; exactly one of `messages`, `prompt`, `prompt_token_ids` is set.

    `model` empty means the default; `max_tokens` None means what the context leaves.
    """

    model: str = ""
    messages: tuple[ChatMessage, ...] = ()
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 5
    deadline_ms: int = 0
    expected_tokens: int = 0
    max_latency_ms: int = 0


def within_quota(request: GenerateRequest, token_quota: int) -> GenerateRequest:
    """The request for a continuation elsewhere: no longer than the first instance promised.

    Only a request with `max_latency_ms` was negotiated; the next instance does not negotiate again.
    """
    if not request.max_latency_ms or not token_quota:
        return request
    return replace(request, max_tokens=min(token_quota, request.max_tokens or token_quota))


def check_in_one_frame(request: GenerateRequest, tokens: int) -> None:
    """Check that an answer of so many tokens can be told whole (`stream: false`).

    Log-probabilities are what makes a frame too large. Raises `SeedanceError` (`bad_request`).
    """
    logprobs = request.sampling.logprobs
    if logprobs is not None and tokens * (logprobs + 1) > LIMITS.whole_logprobs_max:
        most = LIMITS.whole_logprobs_max // (logprobs + 1)
        where = f"with `stream: false` and `logprobs: {logprobs}`"
        raise bad_field("max_tokens", f"from 1 to {most} {where}")


def bad_field(path: str, allowed: str) -> SeedanceError:
    """The `bad_request` that names a field and what is allowed there."""
    return SeedanceError(ErrorCode.BAD_REQUEST, f"`{path}` must be {allowed}", field=path)


def _check_range(path: str, value: float, low: float, high: float) -> None:
    # NaN fails both comparisons, so it is asked for by name (CASES 13).
    if not math.isfinite(value) or value < low or value > high:
        raise bad_field(path, f"from {low:.15g} to {high:.15g}")


def _check_text(path: str, text: str) -> None:
    # A lone surrogate breaks every encoder after this one (CASES 20).
    try:
        text.encode()
    except UnicodeEncodeError:
        raise bad_field(path, "valid Unicode without lone surrogates") from None


def _check_source(request: GenerateRequest) -> None:
    given = (bool(request.messages), request.prompt is not None, bool(request.prompt_token_ids))
    if sum(given) != 1:
        raise bad_field("messages", "given and not empty, or else `prompt`: one of the two")
    if len(request.messages) > LIMITS.messages_max:
        raise bad_field("messages", f"at most {LIMITS.messages_max} turns")
    for index, message in enumerate(request.messages):
        if message.role not in ROLES:
            raise bad_field(f"messages[{index}].role", "one of " + ", ".join(ROLES))
        if message.role == "system" and index > 0:
            raise bad_field(
                f"messages[{index}].role", "`user` or `assistant`: only the first may be `system`"
            )
        _check_text(f"messages[{index}].content", message.content)
    if request.prompt is not None:
        if not request.prompt:
            raise bad_field("prompt", "a text of at least one character")
        _check_text("prompt", request.prompt)


def _check_sampling(sampling: Sampling) -> None:
    limits = LIMITS
    _check_range("temperature", sampling.temperature, 0, limits.temperature_max)
    _check_range("top_p", sampling.top_p, 0, 1)
    if sampling.top_p == 0:
        raise bad_field("top_p", "above 0, up to 1")
    _check_range("top_k", sampling.top_k, 0, limits.tokens_max)
    _check_range("min_p", sampling.min_p, 0, 1)
    penalty = limits.penalty_abs_max
    _check_range("presence_penalty", sampling.presence_penalty, -penalty, penalty)
    _check_range("frequency_penalty", sampling.frequency_penalty, -penalty, penalty)
    _check_range("repetition_penalty", sampling.repetition_penalty, 0, penalty)
    if sampling.repetition_penalty == 0:
        raise bad_field("repetition_penalty", "above 0, up to 2")
    if len(sampling.logit_bias) > limits.logit_bias_entries_max:
        raise bad_field("logit_bias", f"at most {limits.logit_bias_entries_max} entries")
    for token_id, bias in sampling.logit_bias.items():
        _check_range(f"logit_bias.{token_id}", token_id, 0, limits.tokens_max)
        bound = limits.logit_bias_abs_max
        _check_range(f"logit_bias.{token_id}", bias, -bound, bound)
    if sampling.seed is not None:
        _check_range("seed", sampling.seed, 0, limits.seed_max)
    if sampling.logprobs is not None:
        _check_range("logprobs", sampling.logprobs, 0, limits.logprobs_max)


def _check_lengths(request: GenerateRequest) -> None:
    limits = LIMITS
    if request.max_tokens is not None:
        _check_range("max_tokens", request.max_tokens, 1, limits.tokens_max)
    _check_range("min_tokens", request.min_tokens, 0, limits.tokens_max)
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise bad_field("min_tokens", f"at most `max_tokens`, {request.max_tokens}")
    _check_range("priority", request.priority, 0, limits.priority_max)
    _check_range("deadline_ms", request.deadline_ms, 0, limits.duration_ms_max)
    _check_range("expected_tokens", request.expected_tokens, 0, limits.tokens_max)
    _check_range("max_latency_ms", request.max_latency_ms, 0, limits.duration_ms_max)


def check_request(request: GenerateRequest) -> None:
    """Check everything that can be known without the model.

    Raises `SeedanceError` (`bad_request`) naming the first field at fault and its allowed range.
    """
    _check_source(request)
    _check_sampling(request.sampling)
    _check_lengths(request)
    _check_text("model", request.model)
    if len(request.stop) > LIMITS.stop_strings_max:
        raise bad_field("stop", f"at most {LIMITS.stop_strings_max} strings")
    for index, stop in enumerate(request.stop):
        if not stop:
            raise bad_field(f"stop[{index}]", "a text of at least one character")
        _check_text(f"stop[{index}]", stop)
