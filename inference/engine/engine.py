"""The engine: one step after the other, for all generations together."""

from __future__ import annotations

import logging

from inference.engine.block_pool import BlockPool
from inference.engine.desk import FrontDesk, internal_error
from inference.engine.generation import Generation
from inference.engine.limits import EngineLimits
from inference.engine.messages import Command, StepOutput
from inference.engine.plan import PlanRow, Sampled, StepPlan
from inference.engine.pressure import PressureGauge
from inference.engine.rate import RateMeter
from inference.engine.runner import Runner
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import SequenceState
from inference.engine.step_trace import StepTrace
from mesh.clock import Clock
from mesh.membership import Load

__all__ = ["Engine"]

# An engine with nothing to do looks around this often: time-outs, and rates that decay.
IDLE_WAKE_S = 0.5
# Paced tokens that are due within this of each other leave in one step.
PACE_TICK_S = 0.001

_log = logging.getLogger(__name__)


class Engine:
    """`apply` takes commands, `step` computes once and returns what is new for whom.

    No threads, no waiting: whoever drives it calls `apply` and `step` in turn, and may sleep
    `wait_s` in between unless commands arrive. A fault of one request ends that request; a fault of
    the runner ends the generations of that step. With `trace` each step's stages are written down.
    """

    def __init__(
        self, runner: Runner, limits: EngineLimits, clock: Clock, trace: StepTrace | None = None
    ) -> None:
        info = runner.info
        self.runner = runner
        pool = BlockPool(info.total_blocks, info.block_size, window=info.sliding_window)
        self.scheduler = Scheduler(pool, limits, info.cold_blocks)
        self.desk = FrontDesk(info, limits, self.scheduler, runner.release)
        self.load = Load(free_blocks=info.total_blocks, total_blocks=info.total_blocks)
        self.wait_s = 0.0
        self.token_count = 0
        self._clock = clock
        self._trace = trace
        self._gauge = PressureGauge(limits.queue_max, info.total_blocks)
        self._rate = RateMeter()

    def apply(self, commands: list[Command]) -> None:
        """Take commands, in order. Cancelled sequences hold no blocks when this returns."""
        now = self._clock.monotonic()
        for command in commands:
            self.desk.handle(command, now)

    def step(self) -> StepOutput | None:
        """Compute one step, if anything can run; None when there is nothing new for anybody."""
        begun = self._clock.monotonic()
        self.desk.sweep(begun)
        plan = self.scheduler.plan(begun)
        planned = self._clock.monotonic()
        tokens = self._compute(plan, planned) if plan.rows else 0
        now = self._clock.monotonic()
        output = self.desk.emitter.collect()
        if plan.rows:
            self.scheduler.took(now - begun)
        if self._trace is not None and plan.rows:
            self._trace.step(plan, (begun, planned, now, self._clock.monotonic()))
        self._look_around(output, tokens, now)
        self.wait_s = 0.0 if plan.rows else self._idle_s(now)
        something = output.calls or output.ended or output.pressure
        return output if something else None

    def close(self) -> None:
        """Give back what the runner and the trace hold."""
        self.runner.close()
        if self._trace is not None:
            self._trace.close()

    def _compute(self, plan: StepPlan, now: float) -> int:
        for row in plan.rows:
            marks = self._generation(row).marks
            if marks.first_step is None:
                marks.first_step = now
                self.desk.gate.begun(now)
        try:
            chosen = {s.sequence_id: s for s in self.runner.run(plan)}
        except Exception:  # noqa: BLE001 - whatever a model stumbles over, the next step runs
            _log.exception("a step of %d rows failed", len(plan.rows))
            now = self._clock.monotonic()
            for row in plan.rows:
                self.desk.finish(self._generation(row), now, error=internal_error())
            return 0
        now = self._clock.monotonic()
        for row in plan.rows:
            self._absorb(row, chosen.get(row.sequence_id), now)
        return len(chosen)

    def _absorb(self, row: PlanRow, sampled: Sampled | None, now: float) -> None:
        generation = self._generation(row)
        sequence, marks = generation.sequence, generation.marks
        self.scheduler.computed(sequence, len(row.token_ids))
        if marks.prefilled is None and sequence.state is SequenceState.DECODE:
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

    def _generation(self, row: PlanRow) -> Generation:
        return self.desk.directory.of_sequence(row.sequence_id)

    def _look_around(self, output: StepOutput, tokens: int, now: float) -> None:
        places = self.scheduler.places
        free, waiting = places.pool.free, places.waiting
        output.pressure = self._gauge.update(waiting, free)
        if tokens:
            self.token_count += tokens
            self._rate.add(tokens, now)
        self.load = Load(
            running=places.running,
            waiting=waiting,
            free_blocks=free,
            total_blocks=places.pool.total,
            tokens_per_s=self._rate.per_s(now),
        )

    def _idle_s(self, now: float) -> float:
        due = self.scheduler.next_due(now)
        if due is None:
            return IDLE_WAKE_S
        return min(IDLE_WAKE_S, max(PACE_TICK_S, due - now))
