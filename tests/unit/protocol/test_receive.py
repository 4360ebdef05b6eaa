"""The receive window (contract §4.1)."""

from __future__ import annotations

import pytest

from seedance.protocol.frames import Ack
from seedance.protocol.receive import ACK_DELAY_S, ReceiveWindow


def receive(window: ReceiveWindow[int], *seqs: int, now: float = 0.0) -> list[int]:
    got = []
    for seq in seqs:
        got += window.receive(seq, seq, now)
        window.check()
    return got


def test_frames_in_order_move_the_window() -> None:
    """After 5, 6, 7 arrive in order the client acknowledges 8."""
    window: ReceiveWindow[int] = ReceiveWindow(16, base=5)
    assert receive(window, 5, 6, 7) == [5, 6, 7]
    assert window.ack() == Ack(8)


def test_a_missing_frame_holds_the_acknowledgement() -> None:
    """While 6 is missing it keeps acknowledging 6 and says what it has above; then all go on."""
    window: ReceiveWindow[int] = ReceiveWindow(16, base=5)
    assert receive(window, 5, 7, 8, 10) == [5]
    assert window.ack() == Ack(6, ((7, 8), (10, 10)))
    assert window.ack() == Ack(6, ((7, 8), (10, 10)))
    assert receive(window, 6) == [6, 7, 8]
    assert window.ack() == Ack(9, ((10, 10),))


def test_duplicates_are_dropped() -> None:
    """A frame comes out once, whether it is repeated below the window or inside it."""
    window: ReceiveWindow[int] = ReceiveWindow(16)
    assert receive(window, 1, 1, 3, 3, 2, 2, 3) == [1, 2, 3]


def test_beyond_the_window_is_dropped() -> None:
    """The first number past the window is not kept; the last inside it is."""
    window: ReceiveWindow[int] = ReceiveWindow(4)
    assert receive(window, 5, 4, 2, 3) == []
    assert receive(window, 1) == [1, 2, 3, 4]
    assert window.base == 5


def test_an_ack_is_due_after_eight_frames_or_fifty_milliseconds() -> None:
    """The eighth frame makes an `ack` due at once, the first one 50 ms later."""
    window: ReceiveWindow[int] = ReceiveWindow(16)
    assert window.ack_deadline() is None
    receive(window, 1, now=10.0)
    receive(window, 2, 3, 4, 5, 6, 7, now=10.04)
    assert window.ack_deadline() == pytest.approx(10.0 + ACK_DELAY_S)
    receive(window, 8, now=10.04)
    deadline = window.ack_deadline()
    assert deadline is not None
    assert deadline < 10.04
    window.ack()
    assert window.ack_deadline() is None


def test_a_repeated_frame_asks_for_an_ack() -> None:
    """A sender that repeats itself lost our `ack`: it gets another."""
    window: ReceiveWindow[int] = ReceiveWindow(16)
    receive(window, 1)
    window.ack()
    receive(window, 1, now=3.0)
    assert window.ack_deadline() == pytest.approx(3.0 + ACK_DELAY_S)
    assert window.ack() == Ack(2)


def test_a_restart_forgets_what_was_kept() -> None:
    """After a resume nothing kept above the last processed number comes out by itself (§4.5)."""
    window: ReceiveWindow[int] = ReceiveWindow(16)
    receive(window, 1, 3, 4)
    window.restart(2)
    window.check()
    assert window.ack_deadline() is None
    assert receive(window, 2) == [2]
    assert receive(window, 3) == [3]
