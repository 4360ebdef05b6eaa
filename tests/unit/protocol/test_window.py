"""How many frames may be in flight (§4.3)."""

from __future__ import annotations

import pytest

from seedance.protocol.frames import WindowRange
from seedance.protocol.window import SendWindow, credit_share


def test_quick_acks_widen_up_to_the_maximum() -> None:
    """×1.2 under 50 ms, from 32 to 128 and no further."""
    window = SendWindow(WindowRange())
    assert window.size == 32
    window.acknowledged(0.0, 1, 0.049)
    assert window.size == 38
    for _ in range(20):
        window.acknowledged(0.0, 1, 0.01)
    assert window.size == 128


def test_slow_acks_narrow_down_to_the_minimum() -> None:
    """×0.7 over 200 ms, down to 16 and no further; between the two nothing changes."""
    window = SendWindow(WindowRange())
    window.acknowledged(0.0, 1, 0.1)
    assert window.size == 32
    window.acknowledged(0.0, 1, 0.201)
    assert window.size == 22
    for start in range(1, 9):
        window.acknowledged(start, 1, start + 0.5)
    assert window.size == 16


def test_one_late_burst_narrows_once() -> None:
    """Frames sent before the last change say nothing about the new size."""
    window = SendWindow(WindowRange())
    for sent_at in (0.0, 0.1, 0.2):
        window.acknowledged(sent_at, 1, 1.0)
    assert window.size == 22


def test_a_frame_sent_twice_tells_no_time() -> None:
    """Which of the two was acknowledged is not known (Karn)."""
    window = SendWindow(WindowRange())
    window.acknowledged(0.0, 2, 5.0)
    assert window.size == 32


@pytest.mark.parametrize(
    ("free", "live", "share"),
    [(128, 1, 16), (32, 3, 10), (32, 64, 1), (0, 5, 0), (-8, 5, 0), (9, 0, 0)],
)
def test_credit_is_the_free_window_divided(free: int, live: int, share: int) -> None:
    """One to sixteen tokens each, and none of a full window, or one that was outrun: no credit, no compute."""
    assert credit_share(free, live) == share
