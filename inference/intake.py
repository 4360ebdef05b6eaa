"""Frames in: checked, tokenized, and handed to the engine as commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import assert_never

from inference.call import Call, Preparing
from inference.engine.admission import check_model
from inference.engine.desk import internal_error
from inference.engine.loop import EngineLoop
from inference.engine.messages import Attach, Cancel, Command, Credit, Open, Release
from inference.engine.runner import ModelInfo, Prepared, Preparer
from inference.engine.timing import Marks
from inference.openai.engine import UpstreamEngine
from mesh.clock import Clock
from mesh.rpc.convert import request_from_pb
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import GenerateRequest, bad_field, check_request
from seedance.v2 import inference_pb2 as pb

__all__ = ["Intake"]

PREPARER_THREADS = 2
# Requests that wait for a preparer thread, over all calls.
PREPARING_MAX = 4_096
PREPARING_RETRY_AFTER_MS = 1_000
# A full engine inbox drains with the next step.
INBOX_RETRY_S = 0.002
NAME_LENGTH_MAX = 256

_log = logging.getLogger(__name__)


def _opened(
    call: Call,
    stream: int,
    message: pb.Open,
    request: GenerateRequest,
    *,
    prepared: Prepared,
    marks: Marks,
) -> Open:
    trusted = call.trusted
    return Open(
        stream=call.key(stream),
        # Names, epochs and tenants are the mesh's affair; another caller gets a name of its own.
        generation=message.generation if trusted else f"direct/{call.id}/{stream}",
        request=request,
        prepared=prepared,
        marks=marks,
        epoch=message.epoch if trusted else 0,
        tenant=message.tenant if trusted else "direct",
        weight=message.weight if trusted else 0.0,
        forced_ids=tuple(message.forced_prefix),
        credit=message.credit if message.HasField("credit") else None,
        traceparent=message.traceparent,
        lasting=trusted,
    )


class Intake:
    """Turns client frames into commands; templates and tokenizers run in its thread pool.

    Set `draining` and it opens nothing new.
    """

    def __init__(
        self,
        info: ModelInfo,
        preparer: Preparer | None,
        engine: EngineLoop | UpstreamEngine,
        clock: Clock,
        *,
        threads: int = PREPARER_THREADS,
    ) -> None:
        self.draining = False
        self._info = info
        self._preparer = preparer
        self._engine = engine
        self._clock = clock
        self._preparing = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prepare")

    def close(self) -> None:
        """Give the threads back; what they still prepare is for nobody."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def submit(self, commands: Callable[[], list[Command]]) -> None:
        """Hand commands to the engine; while its inbox is full, wait and ask for them anew."""
        while not self._engine.offer(commands()):  # noqa: ASYNC110 - the engine's thread knows no loop
            await asyncio.sleep(INBOX_RETRY_S)

    def take(self, call: Call, frame: pb.ClientFrame, tasks: asyncio.TaskGroup) -> Command | None:
        """The frame's command; None when it was refused, is being prepared or has nothing to say."""
        stream, kind = frame.stream_id, frame.WhichOneof("frame")
        known = call.knows(stream)
        try:
            if stream == 0:
                raise bad_field("stream_id", "1 or more")
            match kind:
                case "open":
                    self._check_new(call, stream)
                    self._open(call, stream, frame.open, tasks)
                    return None
                case "attach":
                    self._check_new(call, stream)
                    return self._attach(call, stream, frame.attach)
                case "credit" | "cancel" | "release":
                    return self._instruct(call, stream, frame)
                case None:
                    raise bad_field("frame", "one of open, attach, credit, cancel, release")
                case _:
                    assert_never(kind)
        except SeedanceError as error:
            call.refuse(stream, error, final=not known)
            return None

    def _check_new(self, call: Call, stream: int) -> None:
        if call.knows(stream):
            raise bad_field("stream_id", "new in its call")

    def _open(self, call: Call, stream: int, message: pb.Open, tasks: asyncio.TaskGroup) -> None:
        arrival = self._clock.monotonic()
        if self.draining:
            raise SeedanceError(ErrorCode.UNAVAILABLE, "this instance is shutting down")
        if call.trusted and not 1 <= len(message.generation) <= NAME_LENGTH_MAX:
            raise bad_field("generation", f"a name of 1 to {NAME_LENGTH_MAX} characters")
        request = request_from_pb(message.request)
        check_request(request)
        check_model(request, self._info)
        if self._preparing >= PREPARING_MAX:
            raise SeedanceError(
                ErrorCode.OVERLOADED,
                "too many requests are being tokenized",
                retry_after_ms=PREPARING_RETRY_AFTER_MS,
            )
        self._preparing += 1
        call.live.add(stream)
        call.preparing[stream] = Preparing()
        tasks.create_task(self._prepare(call, stream, message, request, arrival))

    async def _prepare(
        self, call: Call, stream: int, message: pb.Open, request: GenerateRequest, arrival: float
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            if isinstance(self._engine, UpstreamEngine):
                prepared = await self._engine.prepare(request, message)
                marks = Marks(arrival, arrival, self._clock.monotonic())
            else:
                marks, prepared = await loop.run_in_executor(
                    self._pool, self._work, request, arrival
                )
        except SeedanceError as error:
            call.refuse(stream, error, final=True)
        except Exception:  # noqa: BLE001 - what a tokenizer stumbles over ends this request alone
            _log.exception("a request could not be prepared")
            call.refuse(stream, internal_error(), final=True)
        else:
            opened = _opened(call, stream, message, request, prepared=prepared, marks=marks)
            preparing = call.preparing[stream]
            await self.submit(lambda: preparing.commands(opened))
        finally:
            self._preparing -= 1
            del call.preparing[stream]

    def _work(self, request: GenerateRequest, arrival: float) -> tuple[Marks, Prepared]:
        start = self._clock.monotonic()
        assert self._preparer is not None  # noqa: S101
        prepared = self._preparer.prepare(request)
        return Marks(arrival, start, self._clock.monotonic()), prepared

    def _attach(self, call: Call, stream: int, message: pb.Attach) -> Command:
        if not call.trusted:
            raise SeedanceError(ErrorCode.UNAUTHORIZED, "only the mesh may attach")
        call.live.add(stream)
        return Attach(
            stream=call.key(stream),
            generation=message.generation,
            epoch=message.epoch,
            from_token=message.from_token,
            credit=message.credit if message.HasField("credit") else None,
        )

    def _instruct(self, call: Call, stream: int, frame: pb.ClientFrame) -> Command | None:
        if not call.knows(stream):
            raise SeedanceError(ErrorCode.UNKNOWN_STREAM, "this call has no such stream")
        key, preparing = call.key(stream), call.preparing.get(stream)
        match frame.WhichOneof("frame"):
            case "credit":
                tokens = frame.credit.tokens
                if not tokens:
                    raise bad_field("credit.tokens", "1 or more")
                if preparing is None:
                    return Credit(key, tokens)
                preparing.credit += tokens
            case "cancel":
                if preparing is None:
                    return Cancel(key)
                preparing.cancelled = True
            case _:
                # A release before the end has nothing to forget.
                return None if preparing else Release(key)
        return None
