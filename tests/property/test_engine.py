"""The engine under random traffic: whatever happens around it, a sequence says what it says alone."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.engine_machine import MACHINES, EngineMachine


@pytest.mark.timeout(120)
@pytest.mark.parametrize("machine", MACHINES)
def test_random_lives_conserve_blocks_and_texts(machine: type[EngineMachine]) -> None:
    """Opening, crediting, cancelling, breaking, attaching at any step: budgets kept, nobody starves.

    `check` after every step; every text is its solo run's. `make test-heavy` runs a hundred times as many.
    """
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None)
    )
