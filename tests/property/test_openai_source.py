"""A server's answer, cut in two runs in any way: a continuation finds its place, or says that it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.openai.source import Source
from inference.openai.wire import Delta
from seedance.protocol.errors import SeedanceError
from seedance.protocol.request import GenerateRequest

REQUEST = GenerateRequest(prompt="x")
pieces = st.lists(st.text(max_size=6), min_size=1, max_size=30)


class _Server:
    """Says `texts`, an event each."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    async def stream(self, _request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        for text in self._texts:
            yield Delta(text)
        yield Delta("", "stop")


async def _tokens(source: Source, count: int | None = None) -> tuple[list[int], list[bytes]]:
    ids: list[int] = []
    texts: list[bytes] = []
    while count is None or len(ids) < count:
        token_id = await source.next()
        if token_id is None:
            break
        ids.append(token_id)
        texts.append(source.spell(token_id))
    return ids, texts


def _source(texts: list[str]) -> Source:
    return Source(_Server(texts), REQUEST)  # type: ignore[arg-type]


def _cut_again(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(places)]


@given(pieces, st.integers(0, 30), st.lists(st.integers(0, 10_000), max_size=20))
def test_a_continuation_is_exact_however_the_text_is_cut(
    texts: list[str], known: int, cuts: list[int]
) -> None:
    """From the ids alone: the first part is spelled as it was, the rest follows without a gap."""

    async def run() -> None:
        first = _source(texts)
        await first.begin([])
        ids, spelled = await _tokens(first, known)
        whole = "".join(texts).encode()
        again = _source(_cut_again("".join(texts), cuts))
        await again.begin(ids)
        assert [again.spell(token_id) for token_id in ids] == spelled
        _, rest = await _tokens(again)
        assert b"".join(spelled) + b"".join(rest) == whole
        await first.close()
        await again.close()

    asyncio.run(run())


@given(pieces, st.integers(0, 10_000), st.integers(0, 10_000))
def test_another_text_is_never_taken_for_the_same(
    texts: list[str], place: int, change: int
) -> None:
    """One changed character in what the client has: the continuation is refused."""
    text = "".join(texts)
    if not text:
        return

    async def run() -> None:
        first = _source(texts)
        await first.begin([])
        ids, spelled = await _tokens(first)
        at = place % len(text)
        other = text[:at] + chr(ord("a") + change % 26) + text[at + 1 :]
        if other == text:
            return
        again = _source([other])
        with pytest.raises(SeedanceError, match="did not repeat"):
            await again.begin(ids)
        assert spelled

    asyncio.run(run())
