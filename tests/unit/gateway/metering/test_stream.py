"""What one stream cost, in all books."""

from __future__ import annotations

import pytest

from gateway.metering.events import Attempt
from gateway.metering.stream import ATTEMPTS_MAX, Counts, StreamBooks, discarded_of

ONE, TWO, THREE = ("m", "i-1"), ("m", "i-2"), ("big", "i-3")


@pytest.mark.parametrize(
    ("counts", "discarded"),
    [
        # It ended by itself: the tail without text is free; a difference from the instance shows.
        (Counts("stop", heard=10, framed=9, told=10), 1),
        (Counts("stop", heard=10, framed=9, told=12), 1),
        # It was given up: what the instance made after that was never heard.
        (Counts("cancelled", heard=10, framed=8, told=12), 4),
        (Counts("cancelled", heard=10, framed=8), 2),
        (Counts("internal", heard=10, framed=8, told=3, begun_at=9), 4),
    ],
)
def test_discarded(counts: Counts, discarded: int) -> None:
    """Computed and never framed is discarded and free (§4.9)."""
    assert discarded_of(counts) == discarded


def test_computed_is_the_last_instances_word_after_what_it_was_given() -> None:
    """An instance does not count the forced prefix; nobody's word is no word."""
    assert Counts("stop", 30, 30, told=20, begun_at=10).computed == 30
    assert Counts("stop", 30, 30).computed is None


def test_framed_tokens_are_divided_among_attempts() -> None:
    """CASES 86: each instance's part, in order; together they are what was framed."""
    assert StreamBooks().attempts(*ONE, 50) == ()
    parts = StreamBooks([(*ONE, 10), (*TWO, 30)]).attempts(*THREE, 50)
    assert parts == (Attempt(*ONE, 10), Attempt(*TWO, 20), Attempt(*THREE, 20))


def test_an_attempt_whose_tokens_were_not_framed_is_free() -> None:
    """A stream cancelled with less framed than the first instance made."""
    parts = StreamBooks([(*ONE, 10), (*TWO, 30)]).attempts(*THREE, 12)
    assert [part.completion_tokens for part in parts] == [10, 2, 0]


def test_attempts_are_bounded() -> None:
    """However often it moved, an event holds so many, and they add up."""
    former = [("m", f"i-{n}", n + 1) for n in range(200)]
    parts = StreamBooks(former).attempts(*ONE, 201)
    assert len(parts) == ATTEMPTS_MAX
    assert sum(part.completion_tokens for part in parts) == 201


def test_a_stream_that_moves_on_is_divided() -> None:
    """Who made nothing has no part; who was never accepted cannot have made any."""
    books = StreamBooks()
    books.leave("", "i-0", 0)
    books.hear(10)
    books.leave(*ONE, 10)
    books.leave(*TWO, 10)
    books.hear(25)
    books.hear(24)
    books.told = 15
    counts = books.counts("stop", framed=24)
    assert (counts.heard, counts.computed, discarded_of(counts)) == (25, 25, 1)
    assert books.attempts(*THREE, 24) == (Attempt(*ONE, 10), Attempt(*THREE, 14))


def test_a_count_goes_with_the_instance_that_gave_it() -> None:
    """What one that sent the stream elsewhere had counted is no word of the next, which says none."""
    books = StreamBooks()
    books.hear(50)
    books.told = 50
    books.leave(*ONE, 50)
    books.hear(250)
    counts = books.counts("unavailable", framed=250)
    assert (counts.computed, discarded_of(counts)) == (None, 0)
