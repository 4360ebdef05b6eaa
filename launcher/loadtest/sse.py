"""A client of OpenAI's streaming chat endpoint over a kept HTTP connection, without an SDK."""

from __future__ import annotations

import asyncio
import json
from time import perf_counter
from typing import Any, cast

import httptools
import msgspec

from launcher.loadtest.caller import LOST, Caller, Who, connect_socket
from launcher.loadtest.load import Load, Target
from launcher.loadtest.tally import Answer

__all__ = ["EventCaller"]

DIAL_TIMEOUT_S = 30.0
HTTP_OK = 200
# Of a refusal that is no stream: what is read to find its code.
REFUSAL_BYTES_MAX = 65_536


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    """What of a chunk matters here; a refusal has the same shape."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_read = msgspec.json.Decoder(_Event).decode


class EventCaller(Caller, asyncio.Protocol):
    """One request at a time, as HTTP/1.1 has it; what was under way when it was cut is lost."""

    def __init__(self, target: Target, load: Load, who: Who) -> None:
        super().__init__(target, load, who)
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._line = b""
        self._error = ""
        self._whole = False

    async def dial(self) -> None:
        """Connect."""
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            await connect_socket(self, self.target, self.who)
        self.is_open = True

    def ask(self, answer: Answer) -> None:
        """Send the request; all of it in one write."""
        self._answer, self._error, self._whole = answer, "", False
        body: dict[str, Any] = {
            "messages": answer.prompt.messages,
            "max_tokens": self.load.max_tokens,
            "temperature": self.load.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.target.model:
            body["model"] = self.target.model
        data = json.dumps(body).encode()
        lines = [
            f"POST {self.target.path} HTTP/1.1",
            f"Host: {self.target.host}:{self.target.port}",
            f"User-Agent: {self.who.user}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
        ]
        if self.who.key:
            lines.append(f"Authorization: Bearer {self.who.key}")
        head = "\r\n".join(lines) + "\r\n\r\n"
        if self._transport is None or self._transport.is_closing():
            self._end(LOST)
            return
        self._transport.write(head.encode() + data)

    def cut(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()

    def give_up(self, code: str) -> None:
        """End the answer."""
        self._end(code)

    async def close(self) -> None:
        """Close."""
        if self._transport is not None:
            self._transport.close()

    # ------------------------------------------------------------ the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A new connection knows nothing of the last one."""
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._error = "not_http"
            self.cut()
        if self.who.slow and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            loop = asyncio.get_running_loop()
            loop.call_later(self.load.slow_pause_s, self._read_on, self._transport)

    @staticmethod
    def _read_on(transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The server, the network or this program closed it."""
        del exc
        self.is_open = False
        self._end("" if self._whole else self._error or LOST)
        self.lost.set()

    # ------------------------------------------------------------ httptools' callbacks

    def on_message_begin(self) -> None:
        """An answer begins."""
        self._line = b""

    def on_headers_complete(self) -> None:
        """Its status is known."""
        if self._parser.get_status_code() != HTTP_OK:
            self._error = f"http_{self._parser.get_status_code()}"

    def on_body(self, body: bytes) -> None:
        """Some of it came: lines of events, or a refusal."""
        if self._parser.get_status_code() != HTTP_OK:
            self._line = (self._line + body)[:REFUSAL_BYTES_MAX]
            return
        now = perf_counter()
        *lines, self._line = (self._line + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def on_message_complete(self) -> None:
        """The answer is over."""
        if self._error and self._line:
            self._error = _code_of(self._line) or self._error
        if self._transport is not None and not self._parser.should_keep_alive():
            self.is_open = False  # what is asked next waits for the next connection
            self._transport.close()
        self._end(self._error or ("" if self._whole else LOST))

    def _event(self, data: bytes, now: float) -> None:
        answer = self._answer
        if answer is None:
            return
        if data == b"[DONE]":
            self._whole = True
            return
        event = _read(data)
        if event.error is not None:
            self._error = _name_of(event.error) or "error"
        for choice in event.choices or ():
            if choice.delta is not None and choice.delta.content:
                answer.heard(choice.delta.content.encode(), 1, now)
        if event.usage is not None and event.usage.completion_tokens:
            answer.recount(event.usage.completion_tokens)

    def _end(self, code: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.end(code)


def _code_of(body: bytes) -> str:
    try:
        error = _read(body).error
    except msgspec.DecodeError:
        return ""
    return _name_of(error)


def _name_of(error: Any) -> str:
    """OpenAI's `code`, else its `type`; servers are free with both."""
    return str(error.get("code") or error.get("type") or "") if isinstance(error, dict) else ""
