"""The rule of the prefill chunk, row by row of its table in docs/engine.md."""

from __future__ import annotations

import pytest

from inference.engine.chunking import SMALLEST, UNMEASURED, allowance, piece
from inference.engine.limits import EngineLimits
from inference.engine.step_cost import StepCost

LIMITS = EngineLimits(batch_max=64, step_tokens_max=256, itl_target_ms=45)


def _measured(decode_ms: float = 0.8, prefill_ms: float = 0.5) -> StepCost:
    cost = StepCost()
    for count in (1, 8, 64) * 20:
        cost.observe(count, 0, (2 + decode_ms * count) / 1e3)
        cost.observe(0, 4 * count, prefill_ms * 4 * count / 1e3)
    return cost


def test_nobody_to_disturb() -> None:
    """With no stream decoding, the whole step's budget."""
    assert allowance(LIMITS, _measured(), decodes=0) == 256


def test_before_anything_is_measured() -> None:
    """A size that is right on most machines."""
    assert allowance(LIMITS, StepCost(), decodes=1) == UNMEASURED


@pytest.mark.parametrize(("decodes", "chunk"), [(1, 80), (16, 48), (32, 32), (64, SMALLEST)])
def test_the_promise_to_running_streams_cuts_the_chunk(decodes: int, chunk: int) -> None:
    """(45 ms - 2 ms - 0.8 ms a stream) / 0.5 ms a token, in sixteens, and never nothing."""
    assert allowance(LIMITS, _measured(), decodes=decodes) == chunk


def test_a_machine_that_cannot_keep_the_promise_does_not_crawl() -> None:
    """Decoding takes 100 ms of 45: prompts add a quarter of that."""
    slow = _measured(decode_ms=98 / 16, prefill_ms=0.25)
    assert allowance(LIMITS, slow, decodes=16) == 96


def test_a_fast_machine_takes_the_step_and_a_bound_is_kept() -> None:
    """Never more than the step; never more than the setting."""
    assert allowance(LIMITS, _measured(0.01, 0.001), decodes=8) == 256
    bounded = EngineLimits(prefill_chunk_busy_max=32)
    assert allowance(bounded, _measured(0.01, 0.001), decodes=8) == 32
    assert allowance(bounded, StepCost(), decodes=8) == 32


def test_equal_pieces() -> None:
    """As few as possible, and no crumb at the end."""
    assert piece(64, 64) == 64
    assert piece(70, 64) == 35
    assert [piece(130, 64), piece(86, 64), piece(43, 64)] == [44, 43, 43]
    assert piece(5, 1) == 1
