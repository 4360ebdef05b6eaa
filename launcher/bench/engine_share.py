"""How much of a step is the engine's own: planning, credit, stop strings, text, beside the model."""

from __future__ import annotations

import time
from dataclasses import dataclass

from inference.engine.engine import Engine
from inference.engine.limits import EngineLimits
from inference.engine.messages import Open, StreamKey
from inference.engine.plan import Sampled, StepPlan
from inference.engine.runner import Preparer, Runner
from inference.engine.timing import Marks
from mesh.clock import SystemClock
from seedance.protocol.request import GenerateRequest, Sampling

__all__ = ["EngineShare", "engine_share"]

PROMPT = "The engine of a ship is a machine that turns heat into motion. "
PROMPT_REPEATS = 8


@dataclass(frozen=True, slots=True)
class EngineShare:
    """Seconds of `steps` decode steps: in the runner, and in the engine around it."""

    steps: int
    model_s: float
    engine_s: float

    @property
    def share(self) -> float:
        """The engine's time as a share of the model's."""
        return self.engine_s / self.model_s


class _Timed:
    """A runner that notes how long it computes."""

    def __init__(self, runner: Runner) -> None:
        self.info = runner.info
        self.release, self.close = runner.release, runner.close
        self.seconds = 0.0
        self._runner = runner

    def run(self, plan: StepPlan) -> list[Sampled]:
        begun = time.perf_counter()
        chosen = self._runner.run(plan)
        self.seconds += time.perf_counter() - begun
        return chosen


def engine_share(
    runner: Runner, preparer: Preparer, *, streams: int = 16, tokens: int = 200
) -> EngineShare:
    """Decode `tokens` tokens of `streams` greedy streams together; prompts are not counted."""
    timed = _Timed(runner)
    clock = SystemClock()
    engine = Engine(timed, EngineLimits(), clock)
    request = GenerateRequest(
        prompt=PROMPT * PROMPT_REPEATS,
        max_tokens=tokens,
        ignore_eos=True,
        stop=("a stop string that nobody says",),
        sampling=Sampling(temperature=0),
    )
    for number in range(streams):
        now = clock.monotonic()
        engine.apply(
            [
                Open(
                    stream=StreamKey(1, number),
                    generation=f"g{number}",
                    request=request,
                    prepared=preparer.prepare(request),
                    marks=Marks(now, now, now),
                )
            ]
        )
    places = engine.scheduler.places
    while places.waiting or places.batch.prefilling:
        engine.step()
    timed.seconds, steps, begun = 0.0, 0, time.perf_counter()
    while engine.step() is not None:
        steps += 1
    return EngineShare(steps, timed.seconds, time.perf_counter() - begun - timed.seconds)
