"""JSON Schemas of what OpenAI's endpoints take and give, for the OpenAPI document.

What is taken is drawn from the same limits that judge it; fields that are passed over have no schema.
"""

from __future__ import annotations

from typing import Any

from gateway.openai.schema import CHOICES_MAX, GENERATIONS_MAX
from seedance.protocol.errors import ErrorCode
from seedance.protocol.request import LIMITS

__all__ = ["SCHEMAS", "reference"]

Json = dict[str, Any]

_INTEGER_MAX = 2**63 - 1


def reference(name: str) -> Json:
    """A reference to one of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def _range(low: float, high: float, kind: str = "integer", **more: Any) -> Json:
    return {"type": [kind, "null"], "minimum": low, "maximum": high, **more}


def _object(properties: Json, *optional: str) -> Json:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _list(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def _exactly(*values: Any) -> Json:
    return {"enum": [*values, None]}


_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_FLAG: Json = {"type": ["boolean", "null"]}
_OPTIONAL_TEXT: Json = {"type": ["string", "null"]}
_SOME_TEXT: Json = {"type": "string", "minLength": 1}
_TOKEN_IDS = _list({"type": "integer", "minimum": 0, "maximum": LIMITS.tokens_max}, minItems=1)

# ---------------------------------------------------------------- what is taken

_PENALTY = LIMITS.penalty_abs_max
_BIAS = LIMITS.logit_bias_abs_max
_COMMON: Json = {
    "model": _OPTIONAL_TEXT | {"description": "A served name; without one, the default."},
    "stream": _FLAG,
    "stream_options": {
        "type": ["object", "null"],
        "properties": {"include_usage": _FLAG},
        "description": "Only beside `stream: true`.",
    },
    "n": _range(1, CHOICES_MAX),
    "max_tokens": _range(1, LIMITS.tokens_max, description="Absent: what the context leaves."),
    "min_tokens": _range(0, LIMITS.tokens_max, description="At most `max_tokens`."),
    "temperature": _range(0, LIMITS.temperature_max, "number"),
    "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
    "top_k": _range(0, LIMITS.tokens_max),
    "min_p": _range(0, 1, "number"),
    "presence_penalty": _range(-_PENALTY, _PENALTY, "number"),
    "frequency_penalty": _range(-_PENALTY, _PENALTY, "number"),
    "repetition_penalty": {
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
        "maximum": _PENALTY,
    },
    "logit_bias": {
        "type": ["object", "null"],
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -_BIAS, "maximum": _BIAS},
        "maxProperties": LIMITS.logit_bias_entries_max,
    },
    "seed": _range(-_INTEGER_MAX, _INTEGER_MAX),
    "stop": {
        "anyOf": [_SOME_TEXT, _list(_SOME_TEXT, maxItems=LIMITS.stop_strings_max), {"type": "null"}]
    },
    "ignore_eos": _FLAG,
    "priority": _range(0, LIMITS.priority_max),
    "deadline_ms": _range(0, LIMITS.duration_ms_max),
    "user": _OPTIONAL_TEXT,
    "prompt_cache_key": _OPTIONAL_TEXT,
    "tools": {"type": ["array", "null"], "maxItems": 0, "description": "Not served yet."},
    "tool_choice": _exactly("none", "auto"),
    "response_format": {
        "type": ["object", "null"],
        "properties": {"type": {"const": "text"}},
        "required": ["type"],
        "description": "Other formats are not served yet.",
    },
}

_PART = _object({"type": {"const": "text"}, "text": _TEXT})
_MESSAGE = _object(
    {
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {"anyOf": [_TEXT, _list(_PART, minItems=1)]},
    }
)
_CHAT_REQUEST = _object(
    {
        "messages": _list(_MESSAGE, minItems=1, maxItems=LIMITS.messages_max)
        | {"description": "Only the first may be `system` or `developer`."},
        "max_completion_tokens": _range(1, LIMITS.tokens_max),
        "logprobs": _FLAG,
        "top_logprobs": _range(0, LIMITS.logprobs_max, description="Only beside `logprobs: true`."),
        **_COMMON,
    }
) | {"required": ["messages"]}

_COMPLETION_REQUEST = _object(
    {
        "prompt": {
            "anyOf": [
                _SOME_TEXT,
                _TOKEN_IDS,
                _list({"anyOf": [_SOME_TEXT, _TOKEN_IDS]}, minItems=1, maxItems=GENERATIONS_MAX),
            ]
        },
        "logprobs": _range(0, LIMITS.logprobs_max),
        "best_of": _range(1, CHOICES_MAX, description="As `n`."),
        "echo": _exactly(False),
        "suffix": _exactly(""),
        **_COMMON,
    }
) | {"required": ["prompt"]}

# ---------------------------------------------------------------- what is given

_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
    }
)
_REASON: Json = {"enum": ["stop", "length"]}
_LOGPROB = {"token": _TEXT, "logprob": {"type": "number"}, "bytes": _list(_COUNT)}
_CHAT_LOGPROBS = {
    "anyOf": [
        _object(
            {
                "content": _list(_object({**_LOGPROB, "top_logprobs": _list(_object(_LOGPROB))})),
                "refusal": {"type": "null"},
            }
        ),
        {"type": "null"},
    ]
}
_COMPLETION_LOGPROBS = {
    "anyOf": [
        _object(
            {
                "tokens": _list(_TEXT),
                "token_logprobs": _list({"type": "number"}),
                "top_logprobs": _list(
                    {"type": "object", "additionalProperties": {"type": "number"}}
                ),
                "text_offset": _list(_COUNT),
            }
        ),
        {"type": "null"},
    ]
}


def _answer(kind: str, choice: Json) -> Json:
    head = {"id": _TEXT, "object": {"const": kind}, "created": _COUNT, "model": _TEXT}
    return _object(
        {**head, "choices": _list(_object({"index": _COUNT, **choice})), "usage": _USAGE}
    )


_SPOKEN = _object({"role": {"const": "assistant"}, "content": _TEXT, "refusal": {"type": "null"}})
_USAGE_SUM = dict.fromkeys(
    ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "total_tokens"), _COUNT
)

SCHEMAS: Json = {
    "ChatRequest": _CHAT_REQUEST,
    "CompletionRequest": _COMPLETION_REQUEST,
    "ChatCompletion": _answer(
        "chat.completion",
        {"message": _SPOKEN, "logprobs": _CHAT_LOGPROBS, "finish_reason": _REASON},
    ),
    "Completion": _answer(
        "text_completion",
        {"text": _TEXT, "logprobs": _COMPLETION_LOGPROBS, "finish_reason": _REASON},
    ),
    "Model": _object(
        {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT}
    ),
    "ModelList": _object({"object": {"const": "list"}, "data": _list(reference("Model"))}),
    "Usage": _object(
        {
            "object": {"const": "usage"},
            "tenant": _TEXT,
            "total": _object(_USAGE_SUM),
            "models": _list(_object({"model": _TEXT, **_USAGE_SUM})),
        }
    ),
    "List": _object({"object": {"const": "list"}, "data": _list({"type": "object"})}),
    "Ticket": _object({"ticket": _TEXT, "expires_in": _COUNT}),
    "Status": _object({"status": _TEXT, "reason": _TEXT}, "reason"),
    "Error": _object(
        {
            "error": _object(
                {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": _OPTIONAL_TEXT | {"description": "The field at fault."},
                    "code": {"enum": [code.value for code in ErrorCode]},
                }
            )
        }
    ),
}
