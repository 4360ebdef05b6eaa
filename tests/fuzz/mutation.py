"""What goes wrong with bytes and with JSON on their way: valid input, drawn once and wounded often.

Drawing a value from a strategy takes milliseconds, wounding it microseconds. Hence hypothesis
draws the values, with its eye for the odd ones, and a seeded generator wounds each several times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

__all__ = ["ANY_JSON", "Wounds", "corpus", "many"]

WOUNDS_MAX = 4
USES = 8  # of each drawn value, each time with other wounds
CORPUS_MIN = 25
SPARE = 200  # values to put where another one was

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)

T = TypeVar("T")


def many(examples: int) -> settings:
    """How a fuzzer draws: so many, none of them kept or made smaller."""
    return settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def corpus(strategy: st.SearchStrategy[T], uses: int, number: int) -> list[T]:
    """Enough drawn values for so many uses; `number` decides which."""
    drawn: list[T] = []

    @seed(number)
    @many(max(CORPUS_MIN, uses // USES))
    @given(strategy)
    def draw(value: T) -> None:
        drawn.append(value)

    draw()
    return drawn


class Wounds:
    """A few of them each time, none now and then; `random` decides where and which."""

    def __init__(self, number: int) -> None:
        self.random = Random(number)
        self._spare = corpus(ANY_JSON, SPARE * USES, number)
        self._names = [name for name in self._spare if isinstance(name, str)] or [""]

    def in_bytes(self, valid: bytes) -> bytes:
        """Flipped, cut out, put in, doubled."""
        random, data = self.random, bytearray(valid)
        for _ in range(random.randint(0, WOUNDS_MAX)):
            at, size = random.randint(0, len(data)), random.randint(1, 8)
            match random.choice(("flip", "cut", "insert", "double")):
                case "flip" if at < len(data):
                    data[at] ^= 1 << random.randrange(8)
                case "cut":
                    del data[at : at + size]
                case "insert":
                    data[at:at] = random.randbytes(size)
                case _:
                    data[at:at] = data[at : at + size]
        return bytes(data)

    def in_json(self, valid: Mapping[str, Any]) -> str:
        """Fields left out, of another type, under another name, or given twice."""
        random, body, twice = self.random, dict(valid), ""
        for _ in range(random.randint(0, WOUNDS_MAX)):
            if not body:
                break
            name = random.choice(list(body))
            match random.choice(("drop", "replace", "rename", "twice")):
                case "drop":
                    del body[name]
                case "replace":
                    body[name] = random.choice(self._spare)
                case "rename":
                    body[random.choice(self._names)] = body.pop(name)
                case _:
                    twice = f"{json.dumps(name)}:{json.dumps(random.choice(self._spare))},"
        return "{" + twice + json.dumps(body)[1:]

    def in_pieces(self, data: bytes, most: int = 6) -> list[bytes]:
        """The data cut anywhere, into at most so many pieces."""
        count = self.random.randrange(most)
        cuts = sorted(self.random.randint(0, len(data)) for _ in range(count))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
