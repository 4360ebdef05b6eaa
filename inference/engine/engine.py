"""The engine: one step after the other, for all generations together."""

from __future__ import annotations

import logging

from inference.engine.block_pool import BlockPool
from inference.engine.desk import FrontDesk, internal_error
from inference.engine.generation import Generation
from inference.engine.limits import EngineLimits
from inference.engine.messages import Command, Open, StepOutput
from inference.engine.plan import PlanRow, Sampled, StepPlan
from inference.engine.pressure import PressureGauge
from inference.engine.rate import RateMeter
from inference.engine.runner import Runner
from inference.engine.scheduler import Scheduler
from inference.engine.stages import StageClock, StepTimes
from inference.engine.step_trace import StepTrace
from mesh.clock import Clock
from mesh.membership import Load

__all__ = ["Engine"]

Chosen = dict[int, Sampled]

# An engine with nothing to do looks around this often: time-outs, and rates that decay.
IDLE_WAKE_S = 0.5
# Paced tokens that are due within this of each other leave in one step.
PACE_TICK_S = 0.001

_log = logging.getLogger(__name__)


class Engine:
    """`apply` takes commands, a step computes once, `emit` says what is new for whom.

        fetch     who runs next, and on what: the plan
        compute   the runner's work; it touches nothing of the engine
        absorb    what was chosen: texts, ends, credit; the next plan depends on it
        emit      what is new since the last time; nothing depends on it

    No threads, no waiting: whoever drives it calls one at a time, except that `apply` and `emit` may
    be called while `compute` runs (see `EngineLoop`), for neither calls the runner. Between two
    steps the driver may sleep for `wait_s` unless commands arrive. A fault of one request ends that
    request; a fault of the runner ends the generations of that step. With `trace` each step's stages
    are written down.
    """

    def __init__(
        self, runner: Runner, limits: EngineLimits, clock: Clock, trace: StepTrace | None = None
    ) -> None:
        info = runner.info
        self.runner = runner
        pool = BlockPool(info.total_blocks, info.block_size, window=info.sliding_window)
        self.scheduler = Scheduler(pool, limits, info.cold_blocks)
        self.load = Load(free_blocks=info.total_blocks, total_blocks=info.total_blocks)
        self.stages = StageClock()
        self.wait_s = 0.0
        self.token_count = 0
        self._clock = clock
        self._trace = trace
        self._gauge = PressureGauge(limits.queue_max, info.total_blocks)
        self._rate = RateMeter()
        # Those of the runner's sequences that ended while it computed, or since.
        self._released: list[int] = []
        self.desk = FrontDesk(info, limits, self.scheduler, self._released.append)
        self._rows: list[tuple[PlanRow, Generation]] = []
        self._times = StepTimes(0.0, 0.0, 0.0)
        self._openings = 0

    def apply(self, commands: list[Command]) -> None:
        """Take commands, in order. Cancelled sequences hold no blocks when this returns."""
        now = self._clock.monotonic()
        for command in commands:
            self._openings += isinstance(command, Open)
            self.desk.handle(command, now)

    def step(self) -> StepOutput | None:
        """All stages, one after the other; None when there is nothing new for anybody."""
        plan = self.fetch()
        if plan.rows:
            self.absorb(self.compute(plan))
        return self.emit()

    def fetch(self) -> StepPlan:
        """Plan the next step; without rows there is nothing to compute now."""
        begun = self._clock.monotonic()
        for sequence_id in self._released:
            self.runner.release(sequence_id)
        self._released.clear()
        self.desk.sweep(begun)
        plan = self.scheduler.plan(begun)
        now = self._clock.monotonic()
        of_sequence = self.desk.directory.of_sequence
        self._rows = [(row, of_sequence(row.sequence_id)) for row in plan.rows]
        for _, generation in self._rows:
            if generation.marks.first_step is None:
                generation.marks.first_step = now
                self.desk.gate.begun(now)
        free = begun if self.wait_s else self._times.computed or begun
        self._times = StepTimes(free, begun, now, self._openings)
        self._openings = 0
        self.wait_s = 0.0 if plan.rows else self._idle_s(now)
        return plan

    def compute(self, plan: StepPlan) -> Chosen | None:
        """Run the model; None when it failed."""
        self._times.computing = self._clock.monotonic()
        try:
            return {sampled.sequence_id: sampled for sampled in self.runner.run(plan)}
        except Exception:  # noqa: BLE001 - whatever a model stumbles over, the next step runs
            _log.exception("a step of %d rows failed", len(plan.rows))
            return None
        finally:
            self._times.computed = self._clock.monotonic()

    def absorb(self, chosen: Chosen | None) -> None:
        """Take what the step that was fetched last has chosen."""
        times = self._times
        for row, generation in self._rows:
            # Whoever was cancelled while it was computed has his end already.
            if generation.ended:
                continue
            if chosen is None:
                self.desk.finish(generation, times.computed, error=internal_error())
            else:
                self._take(row, generation, chosen.get(row.sequence_id), times.computed)
        times.absorbed = now = self._clock.monotonic()
        self.stages.add(times)
        if chosen is not None:
            self.scheduler.took(now - times.begun)
            self.token_count += len(chosen)
            self._rate.add(len(chosen), now)
        if self._trace is not None:
            self._trace.absorbed(self._rows, times)

    def emit(self) -> StepOutput | None:
        """What is new since the last time; None: nothing for anybody."""
        begun = self._clock.monotonic()
        output = self.desk.emitter.collect()
        places = self.scheduler.places
        free, waiting = places.pool.free, places.waiting
        output.pressure = self._gauge.update(waiting, free)
        self.load = Load(
            running=places.running,
            waiting=waiting,
            free_blocks=free,
            total_blocks=places.pool.total,
            tokens_per_s=self._rate.per_s(begun),
        )
        now = self._clock.monotonic()
        self.stages.seconds["emit"] += now - begun
        if self._trace is not None:
            self._trace.emitted(output, begun, now)
        something = output.calls or output.ended or output.pressure
        return output if something else None

    def close(self) -> None:
        """Give back what the runner and the trace hold."""
        self.runner.close()
        if self._trace is not None:
            self._trace.close()

    def _take(
        self, row: PlanRow, generation: Generation, sampled: Sampled | None, now: float
    ) -> None:
        sequence, marks = generation.sequence, generation.marks
        self.scheduler.computed(sequence, len(row.token_ids))
        if marks.prefilled is None and sequence.remaining <= 1:
            marks.prefilled = now
        if not row.sample:
            return
        try:
            if sampled is None:
                raise LookupError(f"no token for sequence {row.sequence_id}")  # noqa: TRY301
            reason = generation.answer.take(sampled, keep_logprobs=generation.spell is not None)
        except Exception:  # noqa: BLE001 - this sequence's fault, not its neighbours'
            _log.exception("a token could not be taken")
            self.desk.finish(generation, now, error=internal_error())
            return
        if marks.first_token is None:
            marks.first_token = self._clock.monotonic()
        sequence.pace.played(now)
        self.desk.emitter.touch(generation)
        if reason is not None:
            self.desk.finish(generation, self._clock.monotonic(), reason=reason)
        elif not generation.has_credit:
            self.scheduler.places.pause(sequence)

    def _idle_s(self, now: float) -> float:
        due = self.scheduler.next_due(now)
        if due is None:
            return IDLE_WAKE_S
        return min(IDLE_WAKE_S, max(PACE_TICK_S, due - now))
