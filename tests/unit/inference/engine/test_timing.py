"""Where the time goes."""

from __future__ import annotations

import pytest

from inference.engine.timing import Marks


def _parts(marks: Marks, now: float) -> list[float]:
    timing = marks.timing(now)
    return [
        timing.queue_ms,
        timing.preprocess_ms,
        timing.prefill_ms,
        timing.first_decode_ms,
        timing.cache_sync_ms,
        timing.egress_ms,
        timing.ttft_ms,
        timing.total_ms,
    ]


def test_every_part_is_between_its_marks() -> None:
    """The six parts make the time to the first token; waiting for a tokenizer is queueing."""
    marks = Marks(10.0, 10.001, 10.003, 10.006, 10.010, 10.015, 10.021, 10.030)
    assert _parts(marks, 11) == pytest.approx([4, 2, 4, 5, 0, 6, 21, 30])


def test_a_part_that_was_never_finished_ends_with_the_generation() -> None:
    """Cancelled in the queue: all the time was queueing, and the sum still holds."""
    marks = Marks(10.0, 10.001, 10.003, end=10.010)
    assert _parts(marks, 11) == pytest.approx([8, 2, 0, 0, 0, 0, 10, 10])
