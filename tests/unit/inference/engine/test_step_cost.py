"""What steps cost, learnt from noisy ones."""

from __future__ import annotations

import random

import pytest

from inference.engine.step_cost import Line, StepCost


def test_a_line_is_found_through_noise() -> None:
    """Ten per cent of noise: within a few per cent, also where nothing was measured."""
    dice, line = random.Random(1), Line()
    for _ in range(500):
        x = dice.choice([1, 4, 16, 32])
        line.observe(x, (3 + 0.7 * x) * dice.uniform(0.9, 1.1))
    for x in (1, 8, 64):
        assert line.at(x) == pytest.approx(3 + 0.7 * x, rel=0.1)
        assert line.reach(3 + 0.7 * x) == pytest.approx(x, rel=0.1, abs=1)
    assert line.reach(1.0) == 0.0


def test_one_place_alone_is_read_the_dearer_way() -> None:
    """Flat below, proportional above."""
    line = Line()
    assert not line.known
    for _ in range(20):
        line.observe(16, 14.0)
    assert (line.at(8), line.at(16), line.at(32)) == (14.0, 14.0, 28.0)
    assert (line.reach(7), line.reach(28)) == (0.0, 32.0)


def test_what_costs_nothing_is_unbounded() -> None:
    """A clock that stands still, or a played script."""
    line = Line()
    line.observe(4, 0.0)
    assert line.at(100) == 0.0
    assert line.reach(0.0) == float("inf")


def test_a_stall_is_no_measure() -> None:
    """One step of a second among steps of ten milliseconds moves the line by little."""
    line = Line()
    for _ in range(50):
        line.observe(4, 0.010)
    line.observe(4, 1.0)
    assert line.at(4) < 0.012


def test_a_machine_that_slows_down_is_noticed() -> None:
    """What was learnt fades."""
    line = Line()
    for period in (0.010, 0.020):
        for _ in range(100):
            line.observe(4, period)
    assert line.at(4) == pytest.approx(0.020, rel=0.05)


def test_the_parts_of_a_mixed_step_are_told_apart() -> None:
    """Prompt tokens are charged what decoding alone would not have taken."""
    cost = StepCost()
    for batch in (1, 4, 8) * 20:
        cost.observe(batch, 0, 0.002 + 0.001 * batch)
    assert not cost.known
    for tokens in (16, 64, 128) * 20:
        cost.observe(4, tokens, 0.006 + 0.0005 * tokens)
    assert cost.known
    assert cost.decode_s(4) == pytest.approx(0.006, rel=0.05)
    assert cost.prefill_s(64) == pytest.approx(0.032, rel=0.05)
    assert cost.prefill_within(0.032) == pytest.approx(64, rel=0.05)
    assert cost.batch_within(0.010) == pytest.approx(8, rel=0.1)
