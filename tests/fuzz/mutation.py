"""What goes wrong with bytes and with JSON on their way: strategies for nearly valid input."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

__all__ = ["ANY_JSON", "many", "mutated_bytes", "mutated_json", "pieces"]

WOUNDS_MAX = 4

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def many(examples: int) -> settings:
    """How a fuzzer draws: so many, none of them kept or made smaller."""
    return settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def mutated_bytes(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes with a few wounds: flipped, cut out, put in, doubled."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(0, WOUNDS_MAX))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(1, 8))
        match draw(st.sampled_from(("flip", "cut", "insert", "double"))):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at : at + size]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=size))
            case _:
                data[at:at] = data[at : at + size]
    return bytes(data)


@st.composite
def mutated_json(draw: st.DrawFn, valid: st.SearchStrategy[dict[str, Any]]) -> str:
    """A valid object with fields left out, of another type, under another name, or given twice."""
    body = dict(draw(valid))
    twice = ""
    for _ in range(draw(st.integers(0, WOUNDS_MAX))):
        if not body:
            break
        name = draw(st.sampled_from(sorted(body)))
        match draw(st.sampled_from(("drop", "replace", "rename", "twice"))):
            case "drop":
                del body[name]
            case "replace":
                body[name] = draw(ANY_JSON)
            case "rename":
                body[draw(st.text(max_size=8))] = body.pop(name)
            case _:
                twice = f"{json.dumps(name)}:{json.dumps(draw(ANY_JSON))},"
    return "{" + twice + json.dumps(body)[1:]


def pieces(draw: st.DrawFn, data: bytes, most: int = 6) -> list[bytes]:
    """The data cut anywhere, into at most so many pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=most - 1)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
