"""Stage times and the warning about a model that waits."""

from __future__ import annotations

import logging

import pytest

from inference.engine.stages import FETCH_WAIT_MAX_S, QUIET_S, StageClock, StepTimes
from tests.support.engine_driver import FakeClock, script_driver


def _step(
    at: float = 0.0, wait_s: float = 0.02, plan_s: float = 0.001, openings: int = 0
) -> StepTimes:
    computing = at + wait_s
    return StepTimes(
        free=at,
        begun=computing - plan_s,
        fetched=computing,
        openings=openings,
        computing=computing,
        computed=computing + 0.05,
        absorbed=computing + 0.051,
    )


def test_sums_of_each_stage() -> None:
    """What a scrape reads: seconds in each stage, and how many steps."""
    clock = StageClock()
    clock.add(_step())
    clock.add(_step(1.0))
    assert clock.steps == 2
    assert clock.seconds["fetch_wait"] == pytest.approx(0.04)
    assert clock.seconds["fetch"] == pytest.approx(0.002)
    assert clock.seconds["compute"] == pytest.approx(0.1)
    assert clock.seconds["absorb"] == pytest.approx(0.002)


def test_three_long_waits_in_a_row_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Two are not, nor three with a short one between; and then no more for a while."""
    clock = StageClock()
    short = _step(wait_s=FETCH_WAIT_MAX_S * 0.9)
    for step in (_step(), _step(), short, _step(), _step()):
        clock.add(step)
    assert caplog.records == []
    clock.add(_step())
    clock.add(_step())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "20.0 ms" in record.getMessage()
    clock.add(_step(QUIET_S + 1))
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("step", "flag"),
    [
        (_step(plan_s=0.004), "--max-batch-size"),
        (_step(openings=9), "--intake-threads"),
        (_step(), "--threads"),
    ],
)
def test_the_warning_names_the_flag_that_helps(
    step: StepTimes, flag: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Planning itself takes long; or many requests come in; or there is no core left."""
    clock = StageClock()
    for _ in range(3):
        clock.add(step)
    assert flag in caplog.text


def test_an_engine_without_work_waits_for_nobody() -> None:
    """A pause between two requests is no fetch wait; between two steps of one it is."""
    driver = script_driver()
    driver.play(1, [b"a"])
    driver.run()
    driver.clock.now += 60
    driver.play(2, [b"a"], repeat=2)
    driver.step()
    stages = driver.engine.stages
    assert stages.seconds["fetch_wait"] == 0
    driver.clock.now += 0.25
    driver.step()
    assert stages.seconds["fetch_wait"] == pytest.approx(0.25)
    assert isinstance(driver.clock, FakeClock)
