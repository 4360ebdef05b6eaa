"""An instance that a test plays: real gRPC on loopback, every answer given by the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from mesh.rpc.server import RpcServer
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc
from tests.support.waiting import wait_until

__all__ = ["FakeCall", "FakeInstance", "running_instance"]


class FakeCall:
    """One `Stream` call: `requests` holds what came, `send` answers."""

    def __init__(self, metadata: dict[str, str]) -> None:
        self.metadata = metadata
        self.requests: list[pb.StreamRequest] = []
        self.cancelled = False
        self._answers: asyncio.Queue[pb.StreamResponse | None] = asyncio.Queue()

    @property
    def frames(self) -> list[pb.ClientFrame]:
        return [frame for request in self.requests for frame in request.frames]

    def of_kind(self, kind: str) -> list[pb.ClientFrame]:
        return [frame for frame in self.frames if frame.WhichOneof("frame") == kind]

    def send(self, response: pb.StreamResponse) -> None:
        self._answers.put_nowait(response)

    def end(self) -> None:
        self._answers.put_nowait(None)

    async def opened(self, kind: str = "open", count: int = 1) -> list[int]:
        """Stream ids of the first `count` frames of a kind."""
        await wait_until(lambda: len(self.of_kind(kind)) >= count)
        return [frame.stream_id for frame in self.of_kind(kind)[:count]]

    async def serve(self, requests: Any, context: Any) -> None:
        async def read() -> None:
            async for request in requests:
                self.requests.append(request)

        reader = asyncio.ensure_future(read())
        try:
            while (answer := await self._answers.get()) is not None:
                await context.write(answer)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            reader.cancel()


class FakeInstance(inference_pb2_grpc.InferenceServicer):
    """A servicer that keeps its calls for the test, oldest first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.calls: list[FakeCall] = []
        self._rpc: RpcServer | None = None

    async def Stream(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        call = FakeCall(dict(context.invocation_metadata()))
        self.calls.append(call)
        await call.serve(request_iterator, context)

    async def Describe(  # noqa: N802
        self, request: pb.DescribeRequest, context: Any
    ) -> pb.DescribeResponse:
        return pb.DescribeResponse(instance=self.name, model="m", aliases=["alias"])

    async def start(self) -> None:
        """Listen; after a `stop` on the same port again."""
        self._rpc = RpcServer(["seedance.v2.Inference"])
        inference_pb2_grpc.add_InferenceServicer_to_server(self, self._rpc.server)
        port = await self._rpc.start(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """Go away at once, breaking every call."""
        if self._rpc is not None:
            await self._rpc.server.stop(0)
            self._rpc = None

    async def call(self, index: int = -1) -> FakeCall:
        """The newest call, once there is one."""
        await wait_until(lambda: self.calls)
        return self.calls[index]


@contextlib.asynccontextmanager
async def running_instance(name: str) -> AsyncIterator[FakeInstance]:
    instance = FakeInstance(name)
    await instance.start()
    try:
        yield instance
    finally:
        await instance.stop()
