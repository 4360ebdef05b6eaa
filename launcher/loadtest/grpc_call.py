"""A program that talks to an instance directly: one call, a stream id for each request (§7)."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from time import perf_counter

import grpc
import grpc.aio

from launcher.loadtest.caller import LOST, Caller, Who
from launcher.loadtest.load import Load, Target
from launcher.loadtest.tally import Answer
from mesh.rpc.channel import open_channel
from seedance.v2 import inference_pb2 as pb
from seedance.v2.inference_pb2_grpc import InferenceStub

__all__ = ["CallCaller"]

DIAL_TIMEOUT_S = 30.0


class CallCaller(Caller):
    """One channel of its own, and one call on it."""

    def __init__(self, target: Target, load: Load, who: Who) -> None:
        super().__init__(target, load, who)
        self._name = f"bench-{secrets.token_hex(6)}"
        self._ids = itertools.count(1)
        self._live: dict[int, Answer] = {}
        self._frames: list[pb.ClientFrame] = []
        self._more = asyncio.Event()
        self._call: grpc.aio.StreamStreamCall[pb.StreamRequest, pb.StreamResponse] | None = None
        self._running: asyncio.Task[None] | None = None

    async def dial(self) -> None:
        """Open the channel and the call."""
        channel = open_channel(f"{self.target.host}:{self.target.port}")
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await channel.channel_ready()
        except BaseException:
            await channel.close()
            raise
        self._call = InferenceStub(channel).Stream()  # type: ignore[no-untyped-call]
        self._running = asyncio.create_task(self._run(channel, self._call))
        self.is_open = True

    def ask(self, answer: Answer) -> None:
        """Open a generation, without a bound on what may be sent."""
        number = next(self._ids)
        self._live[number] = answer
        request = pb.GenerateRequest(
            model=self.target.model,
            messages=[pb.ChatMessage(**message) for message in answer.prompt.messages],
            max_tokens=self.load.max_tokens,
            sampling=pb.Sampling(temperature=self.load.temperature),
        )
        opened = pb.Open(generation=f"{self._name}/{number}", epoch=1, request=request)
        self._send(pb.ClientFrame(stream_id=number, open=opened))

    def _send(self, frame: pb.ClientFrame) -> None:
        self._frames.append(frame)
        self._more.set()

    def cut(self) -> None:
        """Break the call."""
        if self._call is not None:
            self._call.cancel()

    def give_up(self, code: str) -> None:
        """End every answer."""
        live, self._live = self._live, {}
        for answer in live.values():
            answer.end(code)

    async def close(self) -> None:
        """End the call and the channel."""
        self.cut()
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _run(
        self,
        channel: grpc.aio.Channel,
        call: grpc.aio.StreamStreamCall[pb.StreamRequest, pb.StreamResponse],
    ) -> None:
        writing = asyncio.create_task(self._write(call))
        try:
            async for message in call:
                self._heard(message, perf_counter())
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass  # the same as an end: the connection is lost
        finally:
            self.is_open = False
            writing.cancel()
            call.cancel()
            await asyncio.wait([writing])
            await channel.close()
            self.give_up(LOST)
            self.lost.set()

    async def _write(
        self, call: grpc.aio.StreamStreamCall[pb.StreamRequest, pb.StreamResponse]
    ) -> None:
        try:
            while True:
                await self._more.wait()
                self._more.clear()
                frames, self._frames = self._frames, []
                await call.write(pb.StreamRequest(frames=frames))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader notices too

    def _heard(self, message: pb.StreamResponse, now: float) -> None:
        columns = message.tokens
        text, at = columns.text, 0
        for number, tokens, size in zip(
            columns.stream_ids, columns.token_counts, columns.byte_lengths, strict=True
        ):
            answer = self._live.get(number)
            if answer is not None and (tokens or size):
                answer.heard(text[at : at + size], tokens, now)
            at += size
        for frame in message.frames:
            kind = frame.WhichOneof("frame")
            if kind in {"done", "error"} and (answer := self._live.pop(frame.stream_id, None)):
                self._send(pb.ClientFrame(stream_id=frame.stream_id, release=pb.Release()))
                answer.end(frame.error.code if kind == "error" else "")
