"""The front desk: who is let in, who listens to which generation, who may go on (contract §7).

It turns commands into moves between the sequences' places, and holds all that the engine knows of
calls, credit, epochs and transcripts.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from inference.engine.admission import admit
from inference.engine.answer import Answer, AnswerRules, FinishReason
from inference.engine.emitter import Emitter
from inference.engine.gate import Gate
from inference.engine.generation import Directory, Generation
from inference.engine.limits import EngineLimits
from inference.engine.messages import (
    Attach,
    CallEnded,
    Cancel,
    Command,
    Credit,
    Hold,
    Open,
    Release,
    StreamKey,
    TurnAway,
)
from inference.engine.negotiation import Negotiator, Promise
from inference.engine.runner import ModelInfo
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Pace, Sequence, SequenceState
from mesh.prefixes import prefix_marks
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import LIMITS, bad_field

__all__ = ["FrontDesk", "internal_error"]

SWEEP_S = 0.5
Told = Credit | Cancel | Release

_log = logging.getLogger(__name__)


def internal_error() -> SeedanceError:
    """A fault of ours, as a peer may see it."""
    return SeedanceError(ErrorCode.INTERNAL, "the instance failed while it worked on this request")


def _taken_over(epoch: int) -> SeedanceError:
    return SeedanceError(ErrorCode.SESSION_EXPIRED, f"taken over by epoch {epoch}")


def _generation(
    command: Open,
    rules: AnswerRules,
    promise: Promise,
    answer: Answer,
    *,
    sequence_id: int,
    now: float,
) -> Generation:
    request, prepared = command.request, command.prepared
    seed, arrival = request.sampling.seed, command.marks.arrival
    # A continuation is in the middle of its script.
    wait_s = (prepared.dt_ms if command.forced_ids else prepared.first_ms) / 1e3
    sequence = Sequence(
        id=sequence_id,
        prompt_ids=prepared.prompt_ids,
        answer_ids=answer.ids,
        arrival=arrival,
        tenant=command.tenant,
        weight=command.weight,
        priority=request.priority,
        deadline=arrival + request.deadline_ms / 1e3 if request.deadline_ms else math.inf,
        # A direct caller cannot choose its salt, nor can a tenant of the mesh be called like one.
        salt=f"mesh/{command.tenant}" if command.lasting else "direct",
        marks=prefix_marks(command.tenant, request) if command.lasting else (),
        sampling=request.sampling,
        seed=secrets.randbelow(LIMITS.seed_max) if seed is None else seed,
        min_tokens=request.min_tokens,
        ending_ids=tuple(sorted(rules.ending_ids)),
        vocab_size=prepared.vocab_size,
        batch_bound=promise.batch_size if promise.narrows else None,
        pace=Pace(now + wait_s, prepared.dt_ms / 1e3),
    )
    generation = Generation(
        opened=command,
        epoch=command.epoch,
        sequence=sequence,
        answer=answer,
        promise=promise,
        stream=command.stream,
        sent=len(answer.ids),
        limit=None,
        spell=None if request.sampling.logprobs is None else prepared.token_bytes,
    )
    generation.grant(len(answer.ids), command.credit)
    return generation


class FrontDesk:
    """Owns the directory of generations; `forget_sequence` tells the runner that one has ended."""

    def __init__(
        self,
        info: ModelInfo,
        limits: EngineLimits,
        scheduler: Scheduler,
        forget_sequence: Callable[[int], None],
    ) -> None:
        self.directory = Directory()
        self.emitter = Emitter(self.directory)
        self.gate = Gate(limits)
        self._negotiator = Negotiator(limits, scheduler, self.gate)
        self._info = info
        self._limits = limits
        self._places = scheduler.places
        self._forget_sequence = forget_sequence
        self._held_calls: set[int] = set()
        self._last_id = 0
        self._next_sweep = 0.0

    @property
    def room(self) -> int:
        """How many more requests may come: those that can run at once, and those that may wait."""
        limits, places = self._limits, self._places
        return limits.batch_max + limits.queue_max - places.running - places.queued

    def handle(self, command: Command, now: float) -> None:
        """Do what is asked; what cannot be done is answered, never raised."""
        error: SeedanceError
        try:
            self._dispatch(command, now)
        except SeedanceError as refusal:
            error = refusal
        except Exception:  # noqa: BLE001 - one request's fault must not end the others' engine
            _log.exception("a command failed")
            error = internal_error()
        else:
            return
        if not isinstance(command, CallEnded | Hold):
            self.emitter.fail(command.stream, error)

    def finish(
        self,
        generation: Generation,
        now: float,
        *,
        reason: FinishReason | None = None,
        error: SeedanceError | None = None,
    ) -> None:
        """End it, well (`reason`) or badly (`error`); its blocks are free at once."""
        if generation.ended:
            return
        generation.reason, generation.error = reason, error
        generation.marks.end = now
        self._places.end(generation.sequence)
        self._forget_sequence(generation.sequence.id)
        if reason is not None:
            generation.answer.close()
        self.emitter.record_end(generation)
        self.emitter.touch(generation)

    def settle(self, generation: Generation) -> None:
        """Let it run or pause it, by its credit and by whether its listener keeps up."""
        stream = generation.stream
        held = stream is not None and stream.call in self._held_calls
        if generation.has_credit and not held:
            self._places.resume(generation.sequence)
        else:
            self._places.pause(generation.sequence)

    def sweep(self, now: float) -> None:
        """See to whoever has waited, lain idle or been remembered for too long."""
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_S
        ended: list[Generation] = []
        for generation in self.directory:
            forgotten_at = generation.forgotten_at(self._limits.transcript_ttl_s)
            if forgotten_at is not None and now >= forgotten_at:
                self._drop(generation, now)
            elif generation.ended:
                ended.append(generation)
            elif self._left_alone(generation, now):
                generation.limit = len(generation.answer.ids)
                self._places.park(generation.sequence)
            elif self._waited_in_vain(generation, now):
                message = "the request waited too long for its turn"
                self.finish(generation, now, error=self.gate.overloaded(message, now))
        surplus = len(ended) - self._limits.transcripts_max
        if surplus > 0:
            ended.sort(key=lambda g: g.marks.end or 0.0)
            for generation in ended[:surplus]:
                self._drop(generation, now)

    def _left_alone(self, generation: Generation, now: float) -> bool:
        return (
            generation.stream is None and now >= generation.detached_at + self._limits.attach_ttl_s
        )

    def _waited_in_vain(self, generation: Generation, now: float) -> bool:
        return (
            generation.marks.first_step is None
            and generation.sequence.state is SequenceState.WAITING
            and self.gate.has_expired(generation.sequence.arrival, now)
        )

    def _drop(self, generation: Generation, now: float) -> None:
        self.finish(generation, now, reason=FinishReason.CANCELLED)
        self.emitter.forget(generation)
        self.directory.forget(generation)

    def _dispatch(self, command: Command, now: float) -> None:
        match command:
            case Open():
                self._open(command, now)
            case Attach():
                self._attach(command)
            case TurnAway():
                raise self.gate.full(now)
            case CallEnded(call=call):
                self._end_call(call, now)
            case Hold(call=call, on=on):
                self._hold(call, on=on)
            case Credit() | Cancel() | Release():
                # An unknown one has ended meanwhile, and its end is on its way.
                generation = self.directory.at(command.stream)
                if generation is not None:
                    self._instruct(generation, command, now)
            case _:
                assert_never(command)

    def _instruct(self, generation: Generation, command: Told, now: float) -> None:
        self.emitter.touch(generation)
        match command:
            case Credit(tokens=tokens):
                if generation.limit is not None:
                    generation.limit += tokens
                    self.settle(generation)
            case Cancel():
                # Who wants no more gives no more credit, and its end must not wait for that.
                generation.limit = None
                self.finish(generation, now, reason=FinishReason.CANCELLED)
            case Release():
                if generation.ended:
                    if generation.stream is not None and not generation.end_sent:
                        # Cancelled in the same breath: its call still counts it.
                        self.emitter.end(generation, generation.stream)
                    self._drop(generation, now)
            case _:
                assert_never(command)

    def _open(self, command: Open, now: float) -> None:
        self._check_unused(command.stream)
        known = self.directory.named(command.generation)
        if known is not None:
            if command.epoch < known.epoch:
                raise _taken_over(known.epoch)
            forced = command.forced_ids
            same = tuple(known.answer.ids[: len(forced)]) == forced and known.error is None
            if command.epoch == known.epoch and same:
                self._take_over(known, command.stream, command.epoch, len(forced), command.credit)
                return
            self._tell_old_listener(known, command.epoch)
            self._drop(known, now)
        self._begin(command, now)

    def _begin(self, command: Open, now: float) -> None:
        rules = admit(command.request, command.prepared, command.forced_ids, self._info)
        self.gate.check(self._places.queued, self._places.alive, now)
        promise = self._promise(command, rules, now)
        rules = replace(rules, max_tokens=promise.token_quota)
        answer = Answer(rules, command.prepared.token_bytes)
        reason = answer.prime(command.forced_ids)
        self._last_id += 1
        generation = _generation(
            command, rules, promise, answer, sequence_id=self._last_id, now=now
        )
        self.directory.add(generation)
        self._places.add(generation.sequence, eligible=False)
        self.settle(generation)
        self.emitter.accept(generation)
        if reason is not None:
            self.finish(generation, now, reason=reason)

    def _promise(self, command: Open, rules: AnswerRules, now: float) -> Promise:
        if command.forced_ids:
            return Promise(self._limits.batch_max, rules.max_tokens)
        prompt_tokens = len(command.prepared.prompt_ids)
        return self._negotiator.promise(command.request, rules, prompt_tokens, now)

    def _attach(self, command: Attach) -> None:
        self._check_unused(command.stream)
        known = self.directory.named(command.generation)
        if known is None:
            raise SeedanceError(
                ErrorCode.UNKNOWN_STREAM, "this instance does not have this generation"
            )
        if command.epoch < known.epoch:
            raise _taken_over(known.epoch)
        self._take_over(known, command.stream, command.epoch, command.from_token, command.credit)

    def _take_over(
        self, known: Generation, stream: StreamKey, epoch: int, base: int, credit: int | None
    ) -> None:
        if base > len(known.answer.ids):
            raise SeedanceError(
                ErrorCode.UNKNOWN_STREAM,
                f"this instance has {len(known.answer.ids)} tokens of this generation, not {base}: "
                "open it with them as forced prefix",
            )
        self._tell_old_listener(known, epoch)
        self.directory.listen(known, stream)
        known.epoch = epoch
        known.sent = base
        known.end_sent = False
        known.grant(base, credit)
        self.emitter.accept(known)
        self.settle(known)
        self.emitter.touch(known)

    def _tell_old_listener(self, known: Generation, epoch: int) -> None:
        if known.stream is not None and not known.end_sent:
            self.emitter.fail(known.stream, _taken_over(epoch))

    def _check_unused(self, stream: StreamKey) -> None:
        if self.directory.at(stream) is not None:
            raise bad_field("stream_id", "new in its call")

    def _end_call(self, call: int, now: float) -> None:
        self._held_calls.discard(call)
        for generation in self.directory.of_call(call):
            self.directory.listen(generation, None)
            generation.detached_at = now
            if not generation.opened.lasting:
                self.finish(generation, now, reason=FinishReason.CANCELLED)
                continue
            if generation.limit is None:
                # Nobody said how much to make without a listener: nothing.
                generation.limit = len(generation.answer.ids)
            self.settle(generation)

    def _hold(self, call: int, *, on: bool) -> None:
        if on:
            self._held_calls.add(call)
        else:
            self._held_calls.discard(call)
        for generation in self.directory.of_call(call):
            self.settle(generation)
