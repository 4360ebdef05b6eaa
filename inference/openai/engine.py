"""The engine whose model is somebody else's: the native one's front desk, and no steps.

Credit, epochs, transcripts, stop strings, queue and fair shares are the desk's, as for a model of ours. A
sequence that runs is a stream of the server's; one without credit is a stream that is not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from inference.config import InferenceSettings
from inference.engine.answer import FinishReason
from inference.engine.block_pool import BlockPool
from inference.engine.desk import SWEEP_S, FrontDesk, internal_error
from inference.engine.generation import Generation
from inference.engine.messages import Command, StepOutput
from inference.engine.plan import Sampled
from inference.engine.pressure import PressureGauge
from inference.engine.runner import Prepared
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import SequenceState
from inference.openai.source import Source, UpstreamPrepared
from inference.openai.wire import Upstream, refusal
from mesh.clock import Clock
from mesh.membership import Load
from seedance.protocol.errors import SeedanceError
from seedance.protocol.request import GenerateRequest, bad_field
from seedance.v2 import inference_pb2 as pb

__all__ = ["UpstreamEngine"]

_REASONS = {
    "length": FinishReason.LENGTH,
    "stop": FinishReason.STOP,
    "content_filter": FinishReason.STOP,
}

_log = logging.getLogger(__name__)


class UpstreamEngine:
    """Has `EngineLoop`'s face to the service, and is on the service's own event loop: it only waits.

    `deliver` is called with what is new, at most once for each turn of the loop. `miscounted` is by how
    many tokens the server counted otherwise than came.
    """

    def __init__(
        self,
        settings: InferenceSettings,
        upstream: Upstream,
        clock: Clock,
        deliver: Callable[[StepOutput], list[Command]],
        on_crash: Callable[[], None],
    ) -> None:
        # httpx takes a quarter of an instance's start, and only this engine needs it.
        from inference.openai.client import UpstreamClient

        info, limits = upstream.info, settings.limits()
        self.scheduler = Scheduler(BlockPool(info.total_blocks, info.block_size), limits)
        self.load = Load(free_blocks=limits.batch_max, total_blocks=limits.batch_max)
        self.token_count = 0
        self.miscounted = 0
        self._desk = FrontDesk(info, limits, self.scheduler, self._hang_up)
        self._client = UpstreamClient(settings, upstream)
        self._clock = clock
        self._deliver = deliver
        self._on_crash = on_crash
        self._gauge = PressureGauge(limits.queue_max, info.total_blocks)
        self._streams: dict[int, asyncio.Task[None]] = {}
        self._paused: dict[int, asyncio.Event] = {}
        self._news = asyncio.Event()

    def start(self) -> None:
        """Begin to serve."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Hang up on everybody."""
        self._running.cancel()

    def offer(self, commands: Sequence[Command]) -> bool:
        """Do what a caller asks, at once; what comes of it is told with the next turn."""
        for command in commands:
            self.post(command)
        return True

    def post(self, command: Command) -> None:
        """Do what is asked."""
        self._desk.handle(command, self._clock.monotonic())
        self._news.set()

    async def prepare(self, request: GenerateRequest, opening: pb.Open) -> Prepared:
        """The request, once the server has said a forced prefix again that is not known here.

        Raises `SeedanceError`.
        """
        if request.sampling.logprobs is not None:
            raise bad_field("logprobs", "left out: this engine's tokens are not the model's")
        source = Source(self._client, request)
        known = self._desk.directory.named(opening.generation)
        fresh = known is None or known.error is not None or known.epoch != opening.epoch
        if fresh and opening.forced_prefix:
            await source.begin(opening.forced_prefix)
        return UpstreamPrepared(
            prompt_ids=[0], token_bytes=source.spell, counted=source.counted, source=source
        )

    async def _run(self) -> None:
        try:
            async with self._client.http, asyncio.TaskGroup() as tasks:
                while True:
                    self._turn(tasks)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(SWEEP_S):
                            await self._news.wait()
                    self._news.clear()
        except Exception:  # noqa: BLE001 - a fault of the engine itself: nothing can go on
            _log.exception("the engine has failed")
            self._on_crash()

    def _turn(self, tasks: asyncio.TaskGroup) -> None:
        now, places = self._clock.monotonic(), self.scheduler.places
        self._desk.sweep(now)
        places.shares.tick()
        self._let_in(tasks, now)
        for sequence_id, go_on in list(self._paused.items()):
            sequence = self._desk.directory.of_sequence(sequence_id).sequence
            if sequence.state is not SequenceState.PAUSED:
                go_on.set()
            elif not sequence.block_table:
                # Nobody came back for it in time: if somebody does later, the server says it again.
                self._hang_up(sequence_id)
        output = self._desk.emitter.collect()
        output.pressure = self._gauge.update(places.waiting, places.pool.free)
        total = self.load.total_blocks
        self.load = Load(places.running, places.waiting, total - len(self._streams), total)
        if output.calls or output.ended or output.pressure:
            for command in self._deliver(output):
                self._desk.handle(command, now)

    def _let_in(self, tasks: asyncio.TaskGroup, now: float) -> None:
        """Whose turn it is, while the server may be asked for more streams."""
        places = self.scheduler.places
        while (
            len(self._streams) < self.load.total_blocks
            and (sequence := places.waiting_room.next()) is not None
            and places.admit(sequence)
        ):
            places.tables.grow(sequence, 1)
            generation = self._desk.directory.of_sequence(sequence.id)
            if generation.marks.first_step is None:
                generation.marks.first_step = now
                self._desk.gate.begun(now)
            # While the server is silent a stream outlives its place: parked, it was heard by nobody.
            if sequence.id not in self._streams:
                self._streams[sequence.id] = tasks.create_task(self._read(generation))

    def _hang_up(self, sequence_id: int) -> None:
        self._paused.pop(sequence_id, None)
        task = self._streams.pop(sequence_id, None)
        if task is not None:
            task.cancel()
        else:
            # A continuation that never ran has a stream all the same.
            _source(self._desk.directory.of_sequence(sequence_id)).drop()

    async def _read(self, generation: Generation) -> None:
        """One generation's stream, from where its answer stands to its end or until hung up."""
        sequence_id = generation.sequence.id
        source = _source(generation)
        reason, error = None, None
        try:
            try:
                reason = await self._relay(generation, source)
            finally:
                await source.close()
        except SeedanceError as fault:
            error = fault
        except Exception:  # noqa: BLE001 - this request's fault, not its neighbours'
            _log.exception("an answer could not be read")
            error = internal_error()
        # Its own task is not to be cancelled by its end.
        self._streams.pop(sequence_id, None)
        self._desk.finish(generation, self._clock.monotonic(), reason=reason, error=error)
        self._news.set()

    async def _relay(self, generation: Generation, source: Source) -> FinishReason:
        sequence = generation.sequence
        reason: FinishReason | None = None
        await source.begin(generation.answer.ids)
        while (token_id := await source.next()) is not None and reason is not FinishReason.STOP:
            while reason is None and sequence.state is SequenceState.PAUSED:
                self._paused[sequence.id] = go_on = asyncio.Event()
                self._news.set()
                await go_on.wait()
                self._paused.pop(sequence.id, None)
            # At its longest the server's last words are waited for: they tell the usage.
            reason = reason or self._take(generation, token_id)
        self._compare(generation, source)
        if reason is None and source.finish_reason not in _REASONS:
            raise refusal(0)
        return reason or _REASONS[source.finish_reason or "stop"]

    def _take(self, generation: Generation, token_id: int) -> FinishReason | None:
        now, marks = self._clock.monotonic(), generation.marks
        if marks.first_token is None:
            marks.prefilled = marks.first_token = now
        self.token_count += 1
        generation.sequence.account.charge(1)
        reason = generation.answer.take(Sampled(generation.sequence.id, token_id))
        if reason is None and not generation.has_credit:
            self.scheduler.places.pause(generation.sequence)
        self._desk.emitter.touch(generation)
        self._news.set()
        return reason

    def _compare(self, generation: Generation, source: Source) -> None:
        """What is billed is what is framed; what the server counts otherwise is worth a look."""
        counted, came = source.counts[2], len(generation.answer.ids)
        if counted and counted != came:
            self.miscounted += abs(counted - came)
            _log.debug("the upstream counted %d tokens where %d came", counted, came)


def _source(generation: Generation) -> Source:
    prepared = generation.opened.prepared
    assert isinstance(prepared, UpstreamPrepared)  # noqa: S101 - this engine prepares nothing else
    return prepared.source
