"""A gateway that says one text to everybody and misbehaves as it is told: for client tests.

It speaks the contract's JSON frames over real sockets, keeps sessions in a dict that several of it
may share, and on a resume goes on at the client's offsets with another cut of the text, as a
gateway does whose store is behind. It also serves a folder, for the browser's tests.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from seedance.protocol.errors import ErrorCode
from seedance.protocol.frames import (
    Accepted,
    Ack,
    Cancel,
    Close,
    Done,
    ErrorFrame,
    Generate,
    Ping,
    Pong,
    PressureFrame,
    Resume,
    Resumed,
    ServerFrame,
    SessionFrame,
    Timing,
    Token,
    Usage,
    WindowRange,
)
from seedance.protocol.json_codec import decode_client, encode_server

__all__ = ["TEXT", "Script", "ScriptedGateway", "ScriptedSession"]

TEXT = "Qubits hold 叠加态, a superposition of 0 and 1 — 量子计算 in one sentence. 🙂\n" * 4
CSP = "default-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'none'; base-uri 'none'"


@dataclass
class Script:
    """What it says, and how it misbehaves.

    `cuts`: the n-th connection is cut without a close frame after so many frames of text.
    `closes`: the n-th connection is closed at once with this code (0: it is not).
    `pressure`: the level that is told at each stream's beginning.
    """

    text: str = TEXT
    piece_chars: int = 3
    pace_s: float = 0.0
    repeat_frames: int = 1
    cuts: tuple[int, ...] = ()
    closes: tuple[int, ...] = ()
    refuse_status: int = 0
    window: int = 32
    pressure: str = ""


@dataclass
class ScriptedSession:
    """A session as its store would have it."""

    id: str
    next_seq: int = 1
    acked: asyncio.Condition = field(default_factory=asyncio.Condition)
    expected: int = 1
    accepted: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    requests: dict[str, Generate] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)


class ScriptedGateway:
    """`async with ScriptedGateway(script) as gateway: …`; then `gateway.url`."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        sessions: dict[str, ScriptedSession] | None = None,
        gateways: list[str] | None = None,
        static: Path | None = None,
        port: int = 0,
    ) -> None:
        self.script = script or Script()
        self.sessions = {} if sessions is None else sessions
        self.gateways = gateways if gateways is not None else []
        self.connections: list[ServerConnection] = []
        self.generated: list[str] = []
        self.acks: list[int] = []
        self.requested_paths: list[str] = []
        self._static = static
        self._port = port
        self._server: Server | None = None

    @property
    def base_url(self) -> str:
        assert self._server is not None
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://127.0.0.1:{port}"

    @property
    def url(self) -> str:
        return self.base_url + "/v2/infer"

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._handle,
            "127.0.0.1",
            self._port,
            select_subprotocol=_choose,
            compression=None,
            process_request=self._http,
            ping_interval=None,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Die: cut every connection and listen no more."""
        if self._server is not None:
            self._server.close(close_connections=False)
            self.cut()
            await self._server.wait_closed()

    def cut(self) -> None:
        """Cut every connection, as a pulled plug does."""
        for connection in self.connections:
            connection.transport.abort()

    # ------------------------------------------------------------ HTTP

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requested_paths.append(request.path)
        path = urlsplit(request.path).path
        if path in ("/v2/infer", "/v1/chat"):
            if self.script.refuse_status:
                return connection.respond(self.script.refuse_status, "refused\n")
            return None
        name = path.removeprefix("/").removeprefix("static/") or "index.html"
        if self._static is None or not (self._static / name).is_file():
            return connection.respond(404, "no such page\n")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        body = (self._static / name).read_bytes()
        headers = Headers(
            {
                "Content-Type": f"{kind}; charset=utf-8",
                "Content-Length": str(len(body)),
                "Content-Security-Policy": CSP,
            }
        )
        return Response(200, "OK", headers, body)

    # ------------------------------------------------------------ WebSocket

    async def _handle(self, connection: ServerConnection) -> None:
        number = len(self.connections)
        self.connections.append(connection)
        if number < len(self.script.closes) and self.script.closes[number]:
            await connection.close(self.script.closes[number])
            return
        cut_after = self.script.cuts[number] if number < len(self.script.cuts) else None
        talk = _Talk(self, connection, cut_after)
        try:
            async with asyncio.TaskGroup() as streams:
                await talk.run(streams)
        except* ConnectionClosed:
            pass


def _choose(_: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol("seedance.v2.json") if "seedance.v2.json" in offered else None


class _Talk:
    """One connection."""

    def __init__(
        self, gateway: ScriptedGateway, connection: ServerConnection, cut_after: int | None
    ) -> None:
        self.gateway = gateway
        self.script = gateway.script
        self.connection = connection
        self.cut_after = cut_after
        self.session = ScriptedSession(id=f"s{len(gateway.connections)}")
        self.tasks: list[asyncio.Task[None]] = []
        # A client that offered nothing is a simple one: TCP is its flow control.
        self.windowed = connection.subprotocol is not None

    async def run(self, streams: asyncio.TaskGroup) -> None:
        await self.send(self.greeting())
        try:
            async for message in self.connection:
                assert isinstance(message, str)
                await self.take(decode_client(message), streams)
        finally:
            for task in self.tasks:
                task.cancel()

    async def take(self, frame: object, streams: asyncio.TaskGroup) -> None:
        session = self.session
        match frame:
            case Generate():
                self.gateway.sessions[session.id] = session
                stream_id = frame.id or f"auto{len(session.requests)}"
                if stream_id not in session.requests:
                    self.gateway.generated.append(stream_id)
                    session.requests[stream_id] = frame
                    self.tasks.append(streams.create_task(self.play(stream_id)))
            case Resume():
                await self.resume(frame, streams)
            case Ack(seq):
                self.gateway.acks.append(seq)
                async with session.acked:
                    session.expected = max(session.expected, seq)
                    session.acked.notify_all()
            case Cancel(stream_id):
                session.cancelled.add(stream_id)
            case Ping(t):
                await self.send(Pong(t))
            case Close():
                self.gateway.sessions.pop(session.id, None)
                await self.connection.close()

    async def resume(self, frame: Resume, streams: asyncio.TaskGroup) -> None:
        session = self.gateway.sessions.get(frame.session)
        if session is None or frame.token != "token-" + session.id:
            await self.send(ErrorFrame(ErrorCode.SESSION_EXPIRED, "gone", retryable=False))
            await self.connection.close(4410)
            return
        self.session = session
        session.next_seq = frame.last_seq + 1
        session.expected = session.next_seq
        session.offsets.update(frame.offsets)
        await self.send(Resumed(session.next_seq, replace(self.greeting(), epoch=2)))
        for stream_id in session.requests:
            if session.offsets.get(stream_id, 0) >= 0:
                if session.accepted.get(stream_id, 0) > frame.last_seq:
                    session.accepted.pop(stream_id)
                self.tasks.append(streams.create_task(self.play(stream_id)))

    def greeting(self) -> SessionFrame:
        return SessionFrame(
            session=self.session.id,
            token="token-" + self.session.id,
            epoch=1,
            tenant="test",
            mode="token",
            server="scripted",
            gateways=tuple(self.gateway.gateways),
            resume_ttl=120,
            window=WindowRange(self.script.window, 16, 128),
        )

    async def play(self, stream_id: str) -> None:
        """Say the text from the session's offset on, then `done`."""
        session, script = self.session, self.script
        whole = session.requests[stream_id].stream
        if stream_id not in session.accepted:
            session.accepted[stream_id] = session.next_seq
            await self.number(Accepted(stream_id, "scripted-0", 1, 1000), hold=False)
        if script.pressure:
            await self.send(PressureFrame(script.pressure, "scripted"))
        offset = session.offsets.setdefault(stream_id, 0)
        text = script.text.encode()[offset:].decode() if whole else ""
        # Each connection cuts the text in its own way.
        size = script.piece_chars + len(self.gateway.connections) - 1
        sent = 0
        for start in range(0, len(text), size):
            if stream_id in session.cancelled:
                break
            piece = text[start : start + size]
            await self.number(Token(stream_id, offset, piece, 1786580000000), hold=self.windowed)
            offset += len(piece.encode())
            session.offsets[stream_id] = offset
            sent += 1
            if self.cut_after is not None and sent >= self.cut_after:
                self.connection.transport.abort()
                return
            await asyncio.sleep(script.pace_s)
        reason = "cancelled" if stream_id in session.cancelled else "stop"
        full = None if whole else script.text
        usage = Usage(5, 0, sent)
        await self.number(
            Done(stream_id, reason, usage, Timing(ttft_ms=1, total_ms=2), text=full), hold=False
        )
        session.offsets[stream_id] = -1

    async def number(self, frame: ServerFrame, *, hold: bool) -> None:
        session = self.session
        if hold:
            async with session.acked:
                await session.acked.wait_for(
                    lambda: session.next_seq - session.expected < self.script.window
                )
        seq = session.next_seq
        session.next_seq += 1
        for _ in range(self.script.repeat_frames):
            await self.send(frame, seq)

    async def send(self, frame: ServerFrame, seq: int | None = None) -> None:
        await self.connection.send(encode_server(frame, seq))
