"""What both ends remember of the frames before."""

from __future__ import annotations

import pytest

from seedance.protocol.differences import STREAMS_MAX, Chain, Streams
from seedance.protocol.errors import ProtocolFault


def test_numbers_are_given_in_order_and_end() -> None:
    """An ended stream's number names nobody; its id gets a new one when it is named again."""
    streams = Streams()
    assert [streams.name("a"), streams.name("b")] == [0, 1]
    streams.end(0)
    with pytest.raises(ProtocolFault):
        streams.id_of(0)
    assert streams.name("a") == 2
    assert [streams.id_of(1), streams.id_of(2)] == ["b", "a"]


def test_an_id_may_be_named_again_before_its_end() -> None:
    """The older number's end leaves the newer one alone."""
    streams = Streams()
    first, second = streams.name("a"), streams.name("a")
    streams.end(first)
    assert streams.numbers == {"a": second}


def test_so_many_streams_and_no_more() -> None:
    """A gateway that never ends one cannot fill a client's memory: the oldest goes."""
    streams = Streams()
    for number in range(STREAMS_MAX + 1):
        streams.name(str(number))
    with pytest.raises(ProtocolFault):
        streams.id_of(0)
    assert streams.id_of(1) == "1"
    assert len(streams.ids) == len(streams.numbers) == len(streams.text_end) == STREAMS_MAX


def test_a_steady_pace_costs_nothing() -> None:
    """What is told is the change of the interval: 0 while tokens come evenly."""
    chain = Chain()
    changes = []
    for timestamp in (1000, 1010, 1020, 1031, 1042, 1000, 10**13):
        changes.append(chain.interval_change(timestamp))
        assert chain.begin(changes[-1], timestamp) == timestamp
    assert changes == [None, 10, 0, 1, 0, -53, None]


def test_the_first_batch_has_a_base() -> None:
    """A difference to nothing is a fault."""
    with pytest.raises(ProtocolFault):
        Chain().begin(5, 0)
