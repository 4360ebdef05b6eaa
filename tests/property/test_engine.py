"""The engine under random traffic: whatever happens around it, a sequence says what it says alone."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.support.engine_machine import EngineMachine

EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestEngine = pytest.mark.timeout(120)(EngineMachine.TestCase)
