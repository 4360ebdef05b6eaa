"""The engine under much more of the traffic of `tests/property/test_engine.py`."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.engine_machine import EngineMachine


@pytest.mark.timeout(1800)
def test_ten_thousand_random_lives_conserve_blocks_and_texts() -> None:
    """10,000 sequences of opening, stepping, crediting, cancelling, breaking and attaching."""
    run_state_machine_as_test(
        EngineMachine, settings=settings(max_examples=10_000, stateful_step_count=40, deadline=None)
    )
