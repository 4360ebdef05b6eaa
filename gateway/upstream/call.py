"""One shared `Inference.Stream` call: carries frames between an instance and `CallStreams`."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import cast

import grpc
import grpc.aio

from gateway.upstream.base import Attach, Open, PressureLevel, StreamListener
from gateway.upstream.streams import CallStreams, Handle
from mesh.rpc.secret import Metadata
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc

__all__ = ["SharedCall"]

_log = logging.getLogger("gateway.upstream")

_Rpc = grpc.aio.StreamStreamCall[pb.StreamRequest, pb.StreamResponse]


class SharedCall:
    """One call's life: `run` returns when it is over; `break_streams` then tells its streams.

    `heard` counts the messages that came.
    """

    def __init__(self, instance: str) -> None:
        self.heard = 0
        self._instance = instance
        self._something_to_send = asyncio.Event()
        self._streams = CallStreams(instance, self._something_to_send.set)

    @property
    def load(self) -> int:
        """Live streams."""
        return len(self._streams)

    @property
    def pressure(self) -> PressureLevel:
        """What the instance asked for last."""
        return self._streams.pressed[0]

    def open(self, spec: Open | Attach, listener: StreamListener) -> Handle:
        """Add a stream. Raises `SeedanceError` (`overloaded`)."""
        return self._streams.open(spec, listener)

    async def run(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        """Carry frames until the call ends or this is cancelled."""
        stub = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
        rpc: _Rpc = stub.Stream(metadata=metadata)
        try:
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write(rpc))
                await self._read(rpc)
                writer.cancel()
        finally:
            # grpcio does not cancel a call that is merely forgotten (CASES 33).
            rpc.cancel()

    def hand_over(self, count: int) -> None:
        """Break so many running streams off, and have the instance forget them."""
        self._streams.hand_over(count)

    def break_streams(self) -> None:
        """Tell every live stream that the call is over."""
        self._streams.break_all()

    async def _read(self, rpc: _Rpc) -> None:
        try:
            while (response := await rpc.read()) is not grpc.aio.EOF:
                self.heard += 1
                self._streams.receive(cast("pb.StreamResponse", response))
        except grpc.aio.AioRpcError as error:
            refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            level = logging.WARNING if refused else logging.INFO
            _log.log(level, "a call to %s ended: %s", self._instance, error.code().name)
        except ValueError as error:
            _log.warning("a call to %s is ended: %s", self._instance, error)

    async def _write(self, rpc: _Rpc) -> None:
        # When the call is over, reading says so too.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._something_to_send.wait()
                self._something_to_send.clear()
                while (request := self._streams.take_request()) is not None:
                    await rpc.write(request)
