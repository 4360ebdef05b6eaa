"""The engine under much more of the traffic of `tests/property/test_engine.py`."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.engine_machine import MACHINES, EngineMachine

# Each run is a handful of sequences in 40 moves: well over 10,000 sequences for each machine.
RUNS = 4000


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("machine", MACHINES)
def test_ten_thousand_random_lives_conserve_blocks_and_texts(machine: type[EngineMachine]) -> None:
    """Sequences opened, stepped, credited, cancelled, preempted, broken off, attached and finished."""
    run_state_machine_as_test(
        machine, settings=settings(max_examples=RUNS, stateful_step_count=40, deadline=None)
    )
