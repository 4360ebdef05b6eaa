"""The engine when commands arrive while a step is computed: nothing changes a text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from inference.engine.messages import StepOutput
from tests.support.engine_driver import EngineDriver
from tests.support.engine_machine import LIMITS, EngineMachine


class _OverlappingDriver(EngineDriver):
    """Leaves each step in flight until the next: what is done in between happens while it computes.

    `late`: the runner reads and writes at the end of that time instead of at its beginning.
    """

    late = False
    _absorb: Callable[[], None] | None = None

    def step(self) -> StepOutput | None:
        """Finish the step in flight, begin the next."""
        self.hear()
        if self._absorb is not None:
            self._absorb()
            self._absorb = None
        output = self.hear()
        engine = self.engine
        plan = engine.fetch()
        engine.scheduler.places.check()
        if plan.rows:
            if self.late:
                self._absorb = lambda: engine.absorb(engine.compute(plan))
            else:
                chosen = engine.compute(plan)
                self._absorb = lambda: engine.absorb(chosen)
        self.steps += 1
        return output


class OverlappingMachine(EngineMachine):
    """The same traffic and the same checks, but all of it beside a step that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.driver: _OverlappingDriver = _OverlappingDriver(self.runner, LIMITS)

    @rule(late=st.booleans())
    def hurry(self, *, late: bool) -> None:
        """The runner touches its blocks early or late in the time that it has."""
        self.driver.late = late


OverlappingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestEngineOverlap = pytest.mark.timeout(120)(OverlappingMachine.TestCase)
