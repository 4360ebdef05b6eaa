"""A small OpenAI-compatible server on a real socket, whose answers and faults a test plans."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

__all__ = ["OpenAIServer", "Plan", "openai_server"]

MODEL = "upstream-model"


@dataclass
class Plan:
    """How the next answers look.

    `tokens` are the answer's deltas, each after `dt_s`; `cut` bytes are written at a time (0: an event at
    a time). `statuses` answer the first requests; `drop_after` deltas the connection dies, `hang_after` deltas
    nothing comes any more; `times` is how many answers that concerns.
    """

    tokens: list[str] = field(default_factory=lambda: ["Hello", " wor", "ld"])
    dt_s: float = 0.0
    cut: int = 0
    finish_reason: str | None = "stop"
    usage: bool = True
    usage_delay_s: float = 0.0
    statuses: list[int] = field(default_factory=list)
    retry_after: str = ""
    refusal: str = "internal: /srv/model at 10.0.0.1"
    drop_after: int | None = None
    hang_after: int | None = None
    times: int = 1_000_000
    line_end: str = "\n"
    owned_by: str = "test"


class OpenAIServer:
    """`requests` are the bodies seen, `open` the answers being written, `sent` the deltas written."""

    def __init__(self) -> None:
        self.plan = Plan()
        self.requests: list[tuple[str, dict]] = []
        self.keys: list[str] = []
        self.open = 0
        self.open_max = 0
        self.sent = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, kept alive between requests."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while (line := await reader.readline()).strip():
                method, path, _ = line.decode().split()
                headers = await _headers(reader)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.keys.append(headers.get("authorization", ""))
                if method == "GET" and path != "/v1/models":
                    await _reply(writer, 404, "{}")
                elif method == "GET":
                    listing = {"data": [{"id": MODEL, "owned_by": self.plan.owned_by}]}
                    await _reply(writer, 200, json.dumps(listing))
                else:
                    await self._answer(path, json.loads(body), reader, writer)

    async def _answer(
        self, path: str, body: dict, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.requests.append((path, body))
        plan = self.plan
        if plan.statuses:
            status = plan.statuses.pop(0)
            if status == 0:
                raise ConnectionResetError
            await _reply(writer, status, json.dumps({"error": {"message": plan.refusal}}), plan)
            return
        self.open += 1
        self.open_max = max(self.open, self.open_max)
        try:
            await self._stream(path, plan, reader, writer)
        finally:
            self.open -= 1

    async def _stream(
        self, path: str, plan: Plan, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        faulty, plan.times = plan.times > 0, plan.times - 1
        for number, event in enumerate(_events(path, plan)):
            if faulty and number == plan.drop_after:
                writer.transport.abort()
                raise ConnectionResetError
            if faulty and number == plan.hang_after:
                await reader.read(1)  # until the other side hangs up
                raise ConnectionResetError
            if event is None:
                await asyncio.sleep(plan.usage_delay_s)
                continue
            await asyncio.sleep(plan.dt_s)
            for piece in _pieces(event, plan.cut):
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
                if plan.cut:
                    await asyncio.sleep(0)
            self.sent += 1
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _pieces(event: bytes, cut: int) -> list[bytes]:
    return [event[i : i + cut] for i in range(0, len(event), cut)] if cut else [event]


def _events(path: str, plan: Plan) -> list[bytes | None]:
    def event(text: object) -> bytes:
        data = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
        return f"data: {data}{plan.line_end}{plan.line_end}".encode()

    def choice(text: str, reason: str | None = None) -> dict:
        shape = {"delta": {"content": text}} if "chat" in path else {"text": text}
        return {"choices": [{"index": 0, "finish_reason": reason} | shape]}

    events: list[bytes | None] = [event(choice(token)) for token in plan.tokens]
    if plan.finish_reason is None:
        return events
    events.append(event(choice("", plan.finish_reason)))
    if plan.usage:
        usage = {
            "prompt_tokens": 11,
            "completion_tokens": len(plan.tokens),
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        events += [None, event({"choices": [], "usage": usage})]
    return [*events, event("[DONE]")]


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    return headers


async def _reply(
    writer: asyncio.StreamWriter, status: int, body: str, plan: Plan | None = None
) -> None:
    retry = f"Retry-After: {plan.retry_after}\r\n" if plan and plan.retry_after else ""
    head = f"HTTP/1.1 {status} Said\r\n{retry}Content-Length: {len(body.encode())}\r\n\r\n"
    writer.write(head.encode() + body.encode())
    await writer.drain()


@contextlib.asynccontextmanager
async def openai_server() -> AsyncIterator[OpenAIServer]:
    """Serves on a free port of the loopback until the block is left."""
    faked = OpenAIServer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await faked.serve(reader, writer)
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    faked.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield faked
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # closed sockets are let go of in the loop's next turn
