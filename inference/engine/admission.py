"""What only the model knows about a request: its name, its vocabulary, its context."""

from __future__ import annotations

from collections.abc import Sequence

from inference.engine.answer import AnswerRules
from inference.engine.runner import ModelInfo, Prepared
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import GenerateRequest, bad_field

__all__ = ["admit", "check_model", "usable_context"]


def check_model(request: GenerateRequest, info: ModelInfo) -> None:
    """Raises `model_not_found` when the request names a model that is not served here."""
    if request.model and request.model != info.name and request.model not in info.aliases:
        raise SeedanceError(
            ErrorCode.MODEL_NOT_FOUND,
            f"model `{request.model}` is not served here",
            field="model",
        )


def usable_context(info: ModelInfo) -> int:
    """Longest prompt and answer together: the model's bound, or less when all blocks hold less."""
    return min(info.context_length, info.total_blocks * info.block_size)


def _check_ids(path: str, ids: Sequence[int], vocab_size: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise bad_field(f"{path}.{token_id}", f"a token id from 0 to {vocab_size - 1}")


def _max_tokens(request: GenerateRequest, prompt_tokens: int, context: int) -> int:
    room = context - prompt_tokens
    if room < 1:
        raise SeedanceError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {prompt_tokens} tokens; prompt and answer together have room for "
            f"{context}",
        )
    if request.max_tokens is not None and request.max_tokens > room:
        raise bad_field(
            "max_tokens",
            f"from 1 to {room}: the context of {context} tokens less the prompt's {prompt_tokens}",
        )
    return room if request.max_tokens is None else request.max_tokens


def admit(
    request: GenerateRequest, prepared: Prepared, forced_ids: Sequence[int], info: ModelInfo
) -> AnswerRules:
    """Check a request against the model and say when its answer ends.

    Raises `SeedanceError`: `context_length_exceeded` with both numbers, or `bad_request` naming the
    field and its allowed range.
    """
    vocab_size = prepared.vocab_size or info.vocab_size
    if not prepared.prompt_ids:
        raise bad_field("prompt", "a text of at least one token")
    _check_ids("logit_bias", list(request.sampling.logit_bias), vocab_size)
    _check_ids("stop_token_ids", request.stop_token_ids, vocab_size)
    _check_ids("forced_prefix", forced_ids, vocab_size)
    max_tokens = _max_tokens(request, len(prepared.prompt_ids), usable_context(info))
    if request.min_tokens > max_tokens:
        raise bad_field("min_tokens", f"from 0 to {max_tokens}")
    if len(forced_ids) > max_tokens:
        raise bad_field("forced_prefix", f"at most `max_tokens`, {max_tokens}, ids long")
    ending = frozenset(request.stop_token_ids)
    if not request.ignore_eos:
        ending |= info.eos_token_ids
    return AnswerRules(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        ending_ids=ending,
        stop=request.stop,
        script_length=prepared.length,
    )
