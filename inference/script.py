"""The script engine: plays a list of tokens, with no model at all.

For client developers, load tests and fault tests. It passes through the same scheduler, credit,
detokenizer, stop strings and usage as a real model; the last message's content is

    {"tokens_b64": ["8J8=", …], "dt_ms": 10, "first_ms": 0, "repeat": 1}

One list item is one token's bytes, one is played per `dt_ms` of the engine's clock (0: as fast as
possible), the first after `first_ms`. A token's id is its index in the list; `repeat` plays the
list that often; a forced prefix is a position. The answer ends with `stop`.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from inference.engine.plan import Sampled, SampledLogprob, StepPlan
from inference.engine.runner import ModelInfo, Prepared
from seedance.protocol.errors import SeedanceError
from seedance.protocol.request import GenerateRequest, bad_field

__all__ = [
    "ITEMS_MAX",
    "PAUSE_MS_MAX",
    "REPEAT_MAX",
    "ScriptPreparer",
    "ScriptRunner",
    "script_info",
]

ITEMS_MAX = 200_000
REPEAT_MAX = 1_000_000
PAUSE_MS_MAX = 3_600_000

CONTEXT_LENGTH = 2**24
BLOCK_SIZE = 64
TOTAL_BLOCKS = 2**20


def script_info(
    *,
    aliases: tuple[str, ...] = (),
    context_length: int | None = None,
    block_size: int = BLOCK_SIZE,
    kv_blocks: int | None = None,
) -> ModelInfo:
    """What the script engine says of itself; the bounds can be narrowed for tests."""
    return ModelInfo(
        name="script",
        aliases=aliases,
        context_length=context_length or CONTEXT_LENGTH,
        vocab_size=ITEMS_MAX,
        eos_token_ids=frozenset(),
        block_size=block_size,
        total_blocks=kv_blocks or TOTAL_BLOCKS,
    )


class ScriptRunner:
    """Chooses the list's next item; computes nothing."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info

    @property
    def info(self) -> ModelInfo:
        """What is served."""
        return self._info

    def run(self, plan: StepPlan) -> list[Sampled]:
        """The item at each row's position."""
        chosen = []
        for row in plan.rows:
            if row.sample:
                token_id = row.answer_position % (row.vocab_size or ITEMS_MAX)
                count = row.sampling.logprobs
                if count is None:
                    chosen.append(Sampled(row.sequence_id, token_id))
                else:
                    # A script is certain of its next token.
                    top = (SampledLogprob(token_id, 0.0),) if count else ()
                    chosen.append(Sampled(row.sequence_id, token_id, 0.0, top))
        return chosen

    def release(self, sequence_id: int) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""


def _field(name: str) -> str:
    return f"messages[-1].content.{name}"


def _number(script: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = script.get(name, default)
    # `true` is an int for Python, and NaN fails the comparison.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad_field(_field(name), f"a number from {low:g} to {high:g}")
    return value


def _tokens(script: dict[str, Any]) -> list[bytes]:
    items = script.get("tokens_b64")
    if not isinstance(items, list) or not 1 <= len(items) <= ITEMS_MAX:
        raise bad_field(_field("tokens_b64"), f"a list of 1 to {ITEMS_MAX} items")
    tokens = []
    for index, item in enumerate(items):
        try:
            tokens.append(base64.b64decode(item, validate=True))
        except (TypeError, ValueError, binascii.Error):
            raise bad_field(_field(f"tokens_b64[{index}]"), "a string of base64") from None
    return tokens


def _parse(content: str) -> dict[str, Any]:
    fault: SeedanceError = bad_field("messages[-1].content", 'a script such as {"tokens_b64": […]}')
    try:
        script = json.loads(content)
    except (ValueError, RecursionError):
        raise fault from None
    if not isinstance(script, dict):
        raise fault
    return script


class ScriptPreparer:
    """Reads scripts; the prompt's tokens are its UTF-8 bytes."""

    def prepare(self, request: GenerateRequest) -> Prepared:
        """Read the script. Raises `bad_request` naming what is wrong with it."""
        if request.prompt_token_ids:
            if max(request.prompt_token_ids) > 255:  # noqa: PLR2004 - a byte
                raise bad_field("prompt_token_ids", "bytes, from 0 to 255")
            prompt = bytes(request.prompt_token_ids)
            content = prompt.decode(errors="replace")
        elif request.prompt is not None:
            content, prompt = request.prompt, request.prompt.encode()
        else:
            content = request.messages[-1].content
            prompt = "".join(m.content for m in request.messages).encode()
        script = _parse(content)
        tokens = _tokens(script)
        repeat = _number(script, "repeat", 1, 1, REPEAT_MAX)
        if repeat != int(repeat):
            raise bad_field(_field("repeat"), "a whole number")
        return Prepared(
            prompt_ids=list(prompt),
            token_bytes=tokens.__getitem__,
            first_ms=_number(script, "first_ms", 0, 0, PAUSE_MS_MAX),
            dt_ms=_number(script, "dt_ms", 0, 0, PAUSE_MS_MAX),
            length=len(tokens) * int(repeat),
            vocab_size=len(tokens),
        )
