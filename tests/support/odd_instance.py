"""`python -m tests.support.odd_instance ODDITY …`: an instance like any other, but for one thing.

`slow`: every first token takes longer. `stuck`: its event loop stands still now and then. `equal`: nothing.
How busy the machine is must not be taken for the instance's pauses, unless they are its oddity.
"""

from __future__ import annotations

import asyncio
import sys
import time

from inference.__main__ import main
from inference.engine.plan import StepPlan
from inference.registration import Registration
from inference.script import ScriptRunner
from mesh.pauses import PauseMeter

SLOWER_S = 0.25
STUCK_S, STUCK_EVERY_S = 0.12, 0.1

_run, _register = ScriptRunner.run, Registration.run


def _slow(runner: ScriptRunner, plan: StepPlan) -> object:
    time.sleep(SLOWER_S)
    return _run(runner, plan)


async def _stuck(registration: Registration) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_register(registration))
        while True:
            await asyncio.sleep(STUCK_EVERY_S)
            time.sleep(STUCK_S)  # noqa: ASYNC251 - that is what is wrong with it


if __name__ == "__main__":
    oddity = sys.argv.pop(1)
    if oddity == "slow":
        ScriptRunner.run = _slow  # type: ignore[assignment,method-assign]
    if oddity == "stuck":
        Registration.run = _stuck  # type: ignore[method-assign]
    else:
        PauseMeter.p99_ms = property(lambda _: 0.0)  # type: ignore[assignment,method-assign]
    main()
