"""When a `checkpoint` is due (§3)."""

from __future__ import annotations

from seedance.protocol.checkpoints import CheckpointPacer


def test_at_most_one_a_second() -> None:
    """News within the second waits for its end."""
    pacer = CheckpointPacer(1.0, now=10)
    pacer.stored(5, 1_000, 10)
    frame = pacer.take(10)
    assert frame is not None
    assert (frame.sequence_id, frame.ack_level, frame.timestamp) == (5, "committed", 1_000)
    pacer.stored(7, 1_500, 10.5)
    assert pacer.take(10.5) is None
    assert pacer.deadline == 11
    later = pacer.take(11)
    assert later is not None
    assert (later.sequence_id, later.timestamp) == (7, 2_000)
    assert pacer.deadline is None


def test_a_streams_end_does_not_wait() -> None:
    """After `done` it comes as soon as the store has it, and not before."""
    pacer = CheckpointPacer(1.0, now=10)
    pacer.stored(5, 0, 10)
    pacer.take(10)
    pacer.ended(7)
    pacer.stored(6, 0, 10.1)
    assert pacer.take(10.1) is None
    pacer.stored(7, 0, 10.2)
    assert pacer.take(10.2) is not None


def test_a_new_level_is_told_at_once() -> None:
    """The client learns when only this gateway can resume it, and when that is over."""
    pacer = CheckpointPacer(1.0, now=10)
    pacer.stored(5, 0, 10)
    pacer.take(10)
    pacer.level(committed=False, wall_ms=0, now=10.1)
    away = pacer.take(10.1)
    assert away is not None
    assert (away.sequence_id, away.ack_level) == (5, "memory")
    pacer.level(committed=True, wall_ms=0, now=10.2)
    back = pacer.take(10.2)
    assert back is not None
    assert back.ack_level == "committed"
