"""Requests for the script engine."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

__all__ = ["SPLIT_WORDS", "script", "script_messages"]

# Code points of one to four bytes, each cut by tokens, so that a fault may fall inside one.
SPLIT_WORDS = [
    b"Hello ",
    b"\xf0\x9f",
    b"\x98\x81",
    b" w\xc3",
    b"\xb6rld",
    b"\n\n",
    b"\xe9",
    b"\x87\x8f. ",
]


def script(
    tokens: Sequence[bytes], *, dt_ms: float = 0, first_ms: float = 0, repeat: int = 1
) -> str:
    """The message content that makes the script engine play `tokens`."""
    return json.dumps(
        {
            "tokens_b64": [base64.b64encode(t).decode() for t in tokens],
            "dt_ms": dt_ms,
            "first_ms": first_ms,
            "repeat": repeat,
        }
    )


def script_messages(
    tokens: Sequence[bytes], *, dt_ms: float = 0, first_ms: float = 0, repeat: int = 1
) -> list[dict[str, str]]:
    """The same as a conversation of one turn."""
    content = script(tokens, dt_ms=dt_ms, first_ms=first_ms, repeat=repeat)
    return [{"role": "user", "content": content}]
