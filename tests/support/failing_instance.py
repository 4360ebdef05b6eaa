"""`python -m tests.support.failing_instance`: an instance like any other, whose model always fails."""

from __future__ import annotations

from typing import NoReturn

from inference.__main__ import main
from inference.engine.plan import StepPlan
from inference.script import ScriptRunner


def _fail(_runner: ScriptRunner, _plan: StepPlan) -> NoReturn:
    raise RuntimeError("a model that was not tested")


if __name__ == "__main__":
    ScriptRunner.run = _fail  # type: ignore[method-assign]
    main()
