"""The numbered log."""

from __future__ import annotations

from seedance.protocol.frames import Flush
from seedance.protocol.log import FrameLog


def filled(*streams: str) -> FrameLog:
    log = FrameLog()
    for name in streams:
        log.append(Flush(name, 0), f"text {log.next_seq}", 1.0)
        log.check()
    return log


def test_numbers_begin_at_one_and_rise_by_one() -> None:
    """Across all streams of the session (§3)."""
    log = filled("a", "b", "a")
    assert [e.seq for e in log] == [1, 2, 3]
    assert (log.base, log.next_seq, log.last_seq) == (1, 4, 3)


def test_an_ack_is_cumulative() -> None:
    """`seq` is the next expected one: everything below is forgotten, once."""
    log = filled("a", "b", "a")
    newest = log.acknowledge(3)
    assert newest is not None
    assert newest.seq == 2
    assert log.acknowledge(3) is None
    assert [e.seq for e in log] == [3]
    log.check()


def test_sacked_frames_are_not_resent_with_their_stream() -> None:
    """What a `sack` names has arrived."""
    log = filled("a", "a", "b", "a")
    log.mark_received([(2, 3)])
    assert [e.seq for e in log.of_stream("a")] == [1, 4]


def test_a_replay_sends_all_that_follows_as_it_was() -> None:
    """On a new connection nothing above `last_seq` has arrived, whatever was sacked (§4.5)."""
    log = filled("a", "a", "a")
    log.mark_received([(3, 3)])
    log.entries[1].sends = 3
    again = log.replay_after(1, 9.0)
    assert [(e.seq, e.text, e.sends, e.received, e.sent_at) for e in again] == [
        (2, "text 2", 1, False, 9.0),
        (3, "text 3", 1, False, 9.0),
    ]
