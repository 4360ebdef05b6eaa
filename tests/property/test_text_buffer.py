"""A stream's text buffer: the quick way in is the careful one, whatever the cuts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seedance.protocol.events import UpstreamTokens
from seedance.protocol.frames import Token
from seedance.protocol.receipt import TextDigest
from seedance.protocol.text import TextBuffer, TextGapError

# What each token of an entry releases: nothing, ASCII, or several bytes.
_TOKENS = st.lists(st.sampled_from(["", "", "a", "bc", "é", "😁", "longer than most"]), min_size=1)
_ENTRIES = st.lists(st.tuples(_TOKENS, st.booleans(), st.integers(0, 12)), max_size=12)


def _entry(tokens: list[str], index: int, offset: int, *, told: bool) -> UpstreamTokens:
    encoded = [token.encode() for token in tokens]
    lengths = tuple(map(len, encoded)) if told and len(tokens) > 1 else ()
    ids = tuple(range(index, index + len(tokens)))
    return UpstreamTokens(ids, index, b"".join(encoded), offset, 7, lengths=lengths)


def _say(buffer: TextBuffer, entry: UpstreamTokens, *, quick: bool) -> bool:
    """Whether the entry fits."""
    try:
        if not (quick and buffer.append(entry)):
            buffer.receive(entry)
    except TextGapError:  # the client is ahead, and said to be inside of a code point
        return False
    return True


def _after(buffer: TextBuffer, skip: int) -> tuple[object, ...]:
    """Everything that can be seen of a buffer, once the client was said to have `skip` more bytes."""
    try:
        buffer.skip_to(buffer.framed_bytes + skip)
        fault = False
    except TextGapError:
        fault = True
    pieces: list[Token | None] = [buffer.take()]
    buffer.check()
    return (
        fault,
        pieces,
        buffer.framed_bytes,
        buffer.framed_tokens,
        buffer.whole_tokens,
        buffer.waiting_tokens,
        list(buffer.token_ids),
        buffer.digest.hexdigest(),
    )


@given(_ENTRIES)
def test_the_quick_way_counts_like_the_careful_one(
    entries: list[tuple[list[str], bool, int]],
) -> None:
    """Text, offsets and every count are the same after each entry, also where a client is ahead (§4.9)."""
    quick, careful = TextBuffer(digest=TextDigest()), TextBuffer(digest=TextDigest())
    text = TextDigest()
    index = offset = 0
    for tokens, told, skip in entries:
        entry = _entry(tokens, index, offset, told=told)
        index, offset = index + len(tokens), offset + len(entry.text)
        text.update(entry.text)
        fits = _say(quick, entry, quick=True)
        assert fits == _say(careful, entry, quick=False)
        if not fits:
            return
        quick.check()
        assert quick.waiting_tokens == careful.waiting_tokens
        seen = _after(quick, skip)
        assert seen == _after(careful, skip)
        if seen[0]:
            return
        if not quick.waiting:
            assert seen[-1] == text.hexdigest(), "a receipt is of the framed text"
