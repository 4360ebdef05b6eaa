"""An instance, of scripts unless told otherwise, inside the test's own loop, and a caller that talks to it over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable

from pydantic import SecretStr

from inference.__main__ import load_engine
from inference.config import InferenceSettings
from inference.engine.runner import Preparer, Runner
from inference.instance import Instance
from mesh.rpc.channel import MESH_SECRET_KEY, open_channel
from mesh.rpc.convert import request_to_pb
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc
from tests.support.engine_driver import script_request
from tests.support.scripts import script
from tests.support.waiting import SURELY_S, wait_until

__all__ = ["SECRET", "Caller", "Received", "calling", "eventually", "running_instance"]

SECRET = "test-secret"  # noqa: S105 - of the test's own instance
LOOK_S = 0.01


@contextlib.asynccontextmanager
async def running_instance(
    *,
    stop: asyncio.Event | None = None,
    parts: tuple[Runner, Preparer] | None = None,
    **settings: object,
) -> AsyncIterator[Instance]:
    """An instance, of scripts unless told otherwise or given `parts`; it drains when the block is left."""
    engine = "native" if parts else "script"
    known = {"engine": engine, "port": 0, "mesh_secret": SecretStr(SECRET), "drain_grace_s": 0}
    stop = stop or asyncio.Event()
    read = InferenceSettings(**(known | settings))  # type: ignore[arg-type]
    # An upstream that is asked for its model may live on this very loop.
    instance = Instance(read, *(parts or await asyncio.to_thread(load_engine, read)), stop)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(instance.serve())
        await wait_until(lambda: instance.address or serving.done())
        try:
            yield instance
        finally:
            stop.set()


async def eventually(read: Callable[[], Awaitable[bool]], within_s: float = SURELY_S) -> None:
    """Wait until an asked question is answered with yes; fails when it is not in time."""
    async with asyncio.timeout(within_s):
        while not await read():  # noqa: ASYNC110 - the answer is on the other side of a call
            await asyncio.sleep(LOOK_S)


class Received:
    """What one stream of a call was sent."""

    def __init__(self) -> None:
        self.accepted: list[pb.Accepted] = []
        self.ids: list[int] = []
        self.text = b""
        self.offset: int | None = None
        self.done: pb.Done | None = None
        self.error: pb.Error | None = None

    @property
    def ended(self) -> bool:
        """Whether its end has come."""
        return self.done is not None or self.error is not None


class Caller:
    """One `Stream` call, read in the background."""

    def __init__(self, call: object, tasks: asyncio.TaskGroup) -> None:
        self.call = call
        self.streams: dict[int, Received] = defaultdict(Received)
        self.pressures: list[pb.Pressure] = []
        self.messages = 0
        self._reader = tasks.create_task(self._read())

    async def send(self, *frames: pb.ClientFrame) -> None:
        """One message of these frames."""
        await self.call.write(pb.StreamRequest(frames=frames))  # type: ignore[attr-defined]

    async def play(self, stream: int, tokens: list[bytes], **more: object) -> Received:
        """Open a script; timing words are the script's, `stop` and the like the request's, the rest `open`'s."""
        timing = {k: more.pop(k) for k in ("dt_ms", "first_ms", "repeat") if k in more}
        fields = {k: more.pop(k) for k in ("stop", "max_tokens", "sampling", "model") if k in more}
        request = request_to_pb(script_request(script(tokens, **timing), **fields))  # type: ignore[arg-type]
        more.setdefault("generation", f"s/{stream}")
        await self.send(pb.ClientFrame(stream_id=stream, open=pb.Open(request=request, **more)))
        return self.streams[stream]

    async def until(self, read: Callable[[], object]) -> None:
        """Wait for something to be received."""
        await wait_until(read)

    async def finish(self) -> str:
        """Ask no more, read to the end; the call's status."""
        await self.call.done_writing()  # type: ignore[attr-defined]
        await self._reader
        return (await self.call.code()).name  # type: ignore[attr-defined]

    async def cut(self) -> None:
        """Break the call."""
        self.call.cancel()  # type: ignore[attr-defined]
        await asyncio.wait({self._reader})

    async def _read(self) -> None:
        # A cut or refused call ends the reading; its status is asked for by `finish`.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            async for message in self.call:  # type: ignore[attr-defined]
                self._take(message)

    def _take(self, message: pb.StreamResponse) -> None:
        self.messages += 1
        columns, at, text_at = message.tokens, 0, 0
        assert len(set(columns.stream_ids)) == len(columns.stream_ids)
        for index, stream in enumerate(columns.stream_ids):
            received = self.streams[stream]
            count, length = columns.token_counts[index], columns.byte_lengths[index]
            if received.offset is None:
                received.offset = columns.offsets[index]
            assert columns.offsets[index] == received.offset + len(received.text)
            received.ids += columns.token_ids[at : at + count]
            text = columns.text[text_at : text_at + length]
            text.decode()
            received.text += text
            at, text_at = at + count, text_at + length
        assert (at, text_at) == (len(columns.token_ids), len(columns.text))
        for frame in message.frames:
            self._event(frame)

    def _event(self, frame: pb.ServerFrame) -> None:
        received = self.streams[frame.stream_id]
        match frame.WhichOneof("frame"):
            case "accepted":
                received.accepted.append(frame.accepted)
            case "done":
                assert received.done is None
                received.done = frame.done
            case "error":
                received.error = frame.error
            case "pressure":
                self.pressures.append(frame.pressure)


@contextlib.asynccontextmanager
async def calling(
    address: str, *, secret: str | None = SECRET
) -> AsyncIterator[Callable[[], Caller]]:
    """Opens calls on one channel; what is left of them is cut when the block is left."""
    metadata = () if secret is None else ((MESH_SECRET_KEY, secret),)
    callers: list[Caller] = []
    async with open_channel(address) as channel, asyncio.TaskGroup() as tasks:
        stub = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]

        def call() -> Caller:
            callers.append(Caller(stub.Stream(metadata=metadata), tasks))
            return callers[-1]

        try:
            yield call
        finally:
            for caller in callers:
                await caller.cut()
