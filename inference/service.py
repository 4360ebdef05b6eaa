"""The Inference service: gRPC in front of the engine (contract §7).

It translates and decides nothing about tokens: frames become the engine's commands, each step's
output becomes one message per call. Templates and tokenizers run in a small thread pool, the engine
in its own thread; the event loop runs neither.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

import seedance
from inference.call import Call
from inference.engine.loop import EngineLoop
from inference.engine.messages import (
    CallEnded,
    Command,
    EndRecord,
    Hold,
    Pressure,
    PressureLevel,
    StepOutput,
)
from inference.engine.runner import ModelInfo
from inference.intake import Intake
from inference.openai.engine import UpstreamEngine
from inference.wire import response_to_pb
from mesh.clock import Clock
from mesh.rpc.channel import MESH_SECRET_KEY
from mesh.rpc.convert import load_to_pb
from seedance.v2 import inference_pb2 as pb

__all__ = ["SERVICE_NAME", "Deliverer", "InferenceService", "add_to_server"]

SERVICE_NAME = "seedance.v2.Inference"


class Deliverer:
    """Carries each step's output from the engine's threads to the calls on the event loop.

    One wake-up of the loop per step at most, and one at a time: a loop that lags finds more in the
    outboxes, not more wake-ups.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, report: Callable[[EndRecord], None]
    ) -> None:
        self.calls: dict[int, Call] = {}
        self.pressure: Pressure | None = None
        self._loop = loop
        self._clock = clock
        self._report = report
        self._lock = threading.Lock()
        self._woken: dict[int, Call] = {}
        self._ended: list[EndRecord] = []
        self._scheduled = False

    def deliver(self, output: StepOutput) -> list[Command]:
        """Called in an engine's thread after a step; answers which calls are to be held."""
        wall_ms = self._clock.wall_ms()
        woken: dict[int, Call] = {}
        holds: list[Command] = []
        for call_id, part in output.calls.items():
            call = self.calls.get(call_id)
            if call is None:
                continue  # it broke meanwhile
            call.outbox.put(part, wall_ms)
            woken[call_id] = call
            if call.outbox.is_full:
                # Said at every step that still brings something: the writer may just have let go
                # of an earlier hold, and its word is heard after ours.
                call.held = True
                holds.append(Hold(call_id, on=True))
        with self._lock:
            self._woken |= woken
            self._ended += output.ended
            if output.pressure is not None:
                self.pressure = output.pressure
                self._woken |= self.calls
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon_threadsafe(self._wake)
        return holds

    def _wake(self) -> None:
        with self._lock:
            self._scheduled = False
            woken, self._woken = self._woken, {}
            ended, self._ended = self._ended, []
        for call in woken.values():
            call.ready.set()
        for record in ended:
            self._report(record)


class InferenceService:
    """The servicer. `secret` is what mesh members show; empty: nobody is believed."""

    def __init__(
        self,
        *,
        instance: str,
        engine_name: str,
        secret: str,
        info: ModelInfo,
        engine: EngineLoop | UpstreamEngine,
        intake: Intake,
        deliverer: Deliverer,
        clock: Clock,
    ) -> None:
        self._instance = instance
        self._engine_name = engine_name
        self._secret = secret
        self._info = info
        self._engine = engine
        self._intake = intake
        self._deliverer = deliverer
        self._clock = clock
        self._last_call = 0

    @property
    def live_streams(self) -> int:
        """Streams whose end has not been written."""
        return sum(len(call.live) for call in self._deliverer.calls.values())

    async def Stream(  # noqa: N802 - the name in the schema
        self,
        request_iterator: AsyncIterator[pb.StreamRequest | None],
        context: grpc.aio.ServicerContext[pb.StreamRequest, pb.StreamResponse],
    ) -> None:
        """Serve one call until its caller asks no more and each of its streams has ended."""
        call = await self._begin(context)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(call, request_iterator, tasks))
                await self._write(call, context)
        except* grpc.aio.BaseError:
            # The caller went away between two messages. With the writer ends what was being read and
            # prepared for it, be that an upstream's long answer said again.
            pass
        finally:
            # Whatever ended the call, its streams hear it: direct ones are cancelled, the mesh's
            # wait for whoever attaches.
            del self._deliverer.calls[call.id]
            self._engine.post(CallEnded(call.id))
        if call.fault is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, call.fault)

    async def Describe(  # noqa: N802 - the name in the schema
        self,
        request: pb.DescribeRequest,
        context: grpc.aio.ServicerContext[pb.DescribeRequest, pb.DescribeResponse],
    ) -> pb.DescribeResponse:
        """Say what is served, and how busy it is."""
        del request, context
        return pb.DescribeResponse(
            instance=self._instance,
            model=self._info.name,
            aliases=self._info.aliases,
            engine=self._engine_name,
            context_length=self._info.context_length,
            vocab_size=self._info.vocab_size,
            load=load_to_pb(self._engine.load),
            version=seedance.__version__,
        )

    async def _begin(
        self, context: grpc.aio.ServicerContext[pb.StreamRequest, pb.StreamResponse]
    ) -> Call:
        shown = dict(context.invocation_metadata() or ()).get(MESH_SECRET_KEY)
        if shown is not None:
            believed = hmac.compare_digest(str(shown).encode(), self._secret.encode())
            if not (self._secret and believed):
                # A wrong secret is a fault to be told, never a reason to serve as somebody else.
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong mesh secret")
        self._last_call += 1
        call = Call(self._last_call, trusted=shown is not None)
        pressure = self._deliverer.pressure
        if pressure is None or pressure.level is PressureLevel.NONE:
            call.told = pressure
        else:
            call.ready.set()
        self._deliverer.calls[call.id] = call
        return call

    async def _read(
        self,
        call: Call,
        requests: AsyncIterator[pb.StreamRequest | None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        async for request in requests:
            if request is None:
                call.fault = "not a seedance.v2.StreamRequest"
                break
            commands: list[Command] = []
            for frame in request.frames:
                while not call.outbox.has_room_for_refusals:
                    call.room.clear()
                    await call.room.wait()
                command = self._intake.take(call, frame, tasks)
                if command is not None:
                    commands.append(command)
            if commands:
                await self._intake.submit(commands.copy)
        call.reading = False
        call.ready.set()

    async def _write(
        self,
        call: Call,
        context: grpc.aio.ServicerContext[pb.StreamRequest, pb.StreamResponse],
    ) -> None:
        while True:
            await call.ready.wait()
            call.ready.clear()
            while True:
                batch, pressure = call.outbox.take(), self._news(call)
                if not batch and pressure is None:
                    break
                message = response_to_pb(
                    batch,
                    pressure,
                    instance=self._instance,
                    model=self._info.name,
                    now=self._clock.monotonic(),
                )
                await context.write(message)
                call.written(batch.output)
            if call.held and not call.outbox.is_full:
                call.held = False
                self._engine.post(Hold(call.id, on=False))
            if call.complete:
                return

    def _news(self, call: Call) -> Pressure | None:
        pressure = self._deliverer.pressure
        if pressure is call.told:
            return None
        call.told = pressure
        return pressure


def _parse_request(data: bytes) -> pb.StreamRequest | None:
    # gRPC would answer INTERNAL, as if the fault were ours; the servicer says INVALID_ARGUMENT.
    try:
        return pb.StreamRequest.FromString(data)
    except DecodeError:
        return None


def add_to_server(service: InferenceService, server: grpc.aio.Server) -> None:
    """Register the servicer, with a reader that lets it answer what cannot be parsed."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Stream": grpc.stream_stream_rpc_method_handler(
            service.Stream,
            request_deserializer=_parse_request,
            response_serializer=pb.StreamResponse.SerializeToString,
        ),
        "Describe": grpc.unary_unary_rpc_method_handler(
            service.Describe,
            request_deserializer=pb.DescribeRequest.FromString,
            response_serializer=pb.DescribeResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
