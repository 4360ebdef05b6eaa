"""A stream's text: cut where it may be cut, counted where it was framed."""

from __future__ import annotations

import json

import pytest

from seedance.protocol.events import UpstreamTokens
from seedance.protocol.frames import TokenLogprob
from seedance.protocol.text import DELTA_BYTES_MAX, TextBuffer, TextGapError, cut


def entry(
    index: int, text: bytes, offset: int, count: int = 1, lengths: tuple[int, ...] = ()
) -> UpstreamTokens:
    ids = tuple(range(index, index + count))
    return UpstreamTokens(ids, index, text, offset, 5, lengths=lengths)


def fill(buffer: TextBuffer, *texts: bytes) -> None:
    for text in texts:
        buffer.receive(entry(len(buffer.token_ids), text, buffer.received_bytes))
        buffer.check()


def test_deltas_that_wait_are_merged() -> None:
    """What waited leaves in one piece, with the number of its tokens."""
    buffer = TextBuffer()
    fill(buffer, b"a", b"b", b"c")
    piece = buffer.take()
    assert piece is not None
    assert (piece.offset, piece.delta, piece.tokens) == (0, "abc", 3)
    assert buffer.take() is None


def test_a_token_without_text_counts_with_the_next_text() -> None:
    """Half a code point costs nothing until its character is framed (§4.9)."""
    buffer = TextBuffer()
    fill(buffer, b"a", b"")
    assert buffer.take() is not None
    assert buffer.framed_tokens == 1
    assert buffer.waiting_tokens == 0
    fill(buffer, "😀".encode())
    piece = buffer.take()
    assert piece is not None
    assert piece.tokens == 2
    fill(buffer, b"", b"")
    assert buffer.framed_tokens == 3


def test_a_merged_entry_counts_like_single_ones() -> None:
    """A replayed transcript with lengths bills what the single tokens would have (§4.9)."""
    buffer = TextBuffer()
    buffer.receive(entry(0, b"abcd", 0, count=4, lengths=(1, 3, 0, 0)))
    assert buffer.take() is not None
    assert buffer.framed_tokens == 2
    assert buffer.whole_tokens == 2


def test_long_text_is_cut_between_code_points_within_4_kib() -> None:
    """No piece exceeds a frame, whatever JSON makes of it, and none ends inside a character (§1)."""
    for unit in ("é", "😀", "\x01", '"', "a", "\n"):
        whole = unit * 3000
        buffer = TextBuffer()
        fill(buffer, whole.encode())
        text = ""
        while (piece := buffer.take()) is not None:
            assert len(json.dumps(piece.delta, ensure_ascii=False).encode()) <= DELTA_BYTES_MAX + 2
            assert piece.offset == len(text.encode())
            text += piece.delta
        assert text == whole
        assert buffer.framed_tokens == 1


def test_the_first_piece_of_a_long_token_counts_it() -> None:
    """A token is framed when any part of it is; the rest adds nothing (§4.9)."""
    buffer = TextBuffer()
    fill(buffer, b"x" * 5000)
    first, second = buffer.take(), buffer.take()
    assert first is not None
    assert second is not None
    assert (first.tokens, second.tokens) == (1, 0)
    assert buffer.whole_tokens == 1


def test_what_was_heard_before_is_not_taken_twice() -> None:
    """Tokens repeated by an instance add neither text nor count."""
    buffer = TextBuffer()
    fill(buffer, b"ab", b"cd")
    buffer.receive(entry(0, b"abcdef", 0, count=3, lengths=(2, 2, 2)))
    assert list(buffer.token_ids) == [0, 1, 2]
    piece = buffer.take()
    assert piece is not None
    assert (piece.delta, piece.tokens) == ("abcdef", 3)


@pytest.mark.parametrize(("index", "offset"), [(1, 0), (0, 1)])
def test_a_gap_is_noticed(index: int, offset: int) -> None:
    """Missing tokens or bytes are never papered over."""
    with pytest.raises(TextGapError):
        TextBuffer().receive(entry(index, b"x", offset))


def test_a_restored_stream_goes_on_at_the_clients_offset() -> None:
    """Text that the client has is dropped, but its tokens are counted (§4.5)."""
    buffer = TextBuffer([0], framed_bytes=2, framed_tokens=1)
    buffer.skip_to(5)
    assert buffer.behind
    buffer.receive(entry(1, b"cdefg", 2, count=3, lengths=(2, 2, 1)))
    assert not buffer.behind
    assert buffer.framed_tokens == 3
    piece = buffer.take()
    assert piece is not None
    assert (piece.offset, piece.delta, piece.tokens) == (5, "fg", 1)


def test_an_offset_inside_a_character_is_refused() -> None:
    """A client that claims half a character is not given broken text."""
    buffer = TextBuffer()
    fill(buffer, "é".encode())
    with pytest.raises(TextGapError):
        buffer.skip_to(1)


def test_logprobs_leave_with_their_token() -> None:
    """A frame with log-probabilities holds one token's worth; a textless token's come with the next."""
    buffer = TextBuffer()
    for index, text in enumerate((b"a", b"", b"b")):
        logprob = TokenLogprob(str(index), (), -1.0)
        buffer.receive(UpstreamTokens((index,), index, text, buffer.received_bytes, 5, (logprob,)))
    first, second = buffer.take(), buffer.take()
    assert first is not None
    assert second is not None
    assert [p.token for p in first.logprobs] == ["0"]
    assert [p.token for p in second.logprobs] == ["1", "2"]


def test_cut_never_splits_a_code_point() -> None:
    """Every prefix that `cut` allows is valid UTF-8."""
    data = "aé😀b".encode()
    for size in range(len(data) + 1):
        data[: cut(data, size)].decode()
