"""A WebSocket client of a gateway that costs a microsecond or two a token.

It keeps the client's side of the contract (§4: acknowledging, resuming with offsets), but no
window of its own: TCP brings frames in order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from time import perf_counter
from typing import Any, cast

from launcher.loadtest.caller import LOST, Caller, DialError, Who, connect_socket
from launcher.loadtest.framing import Opcode, framed, take_frames, upgrade_request
from launcher.loadtest.heard_frame import HeardFrame, read_binary, read_json
from launcher.loadtest.load import Load, Target
from launcher.loadtest.tally import Answer
from seedance.client.subprotocols import Talk, talk
from seedance.protocol.errors import CLOSE_RETRY_NEVER, CloseCode
from seedance.protocol.json_codec import client_frame

__all__ = ["SocketCaller"]

JSON = "seedance.v2.json"
ACK_EVERY, ACK_AFTER_S = 8, 0.05
DIAL_TIMEOUT_S = 30.0
_REFUSED_FOR_GOOD = {401, 403, 404}


class SocketCaller(Caller):
    """One session over as many connections as it takes; a simple client's ends with its connection."""

    def __init__(self, target: Target, load: Load, who: Who) -> None:
        super().__init__(target, load, who)
        self._wire = _Wire(target, load, who, self)
        self._session = ("", "")
        # Whether this connection carries the session: what a refused `resume` is told has numbers too.
        self._welcome = False
        self._last_seq = 0
        self._unacknowledged = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ids = itertools.count(1)
        self._live: dict[str, Answer] = {}
        # Requests that no frame has answered yet: they are sent again after a resume.
        self._asked: dict[str, dict[str, Any]] = {}
        # Ends that the server may not have in its store yet (§3 `resume`).
        self._ended: dict[str, int] = {}

    # ------------------------------------------------------------ what the run asks of it

    async def dial(self) -> None:
        """Connect; with a session behind it, resume."""
        await self._wire.dial()
        self.is_open = True
        for body in list(self._asked.values()):
            self._wire.send(body)

    def ask(self, answer: Answer) -> None:
        """Begin a stream in the session."""
        stream = f"s{next(self._ids)}"
        self._live[stream] = answer
        body = {
            "type": "generate",
            "id": stream,
            "messages": answer.prompt.messages,
            "max_tokens": self.load.max_tokens,
            "temperature": self.load.temperature,
        }
        if self.target.model:
            body["model"] = self.target.model
        self._asked[stream] = body
        self._wire.send(body)

    def cut(self) -> None:
        """Break the connection."""
        self._wire.abort()

    def give_up(self, code: str) -> None:
        """End every answer."""
        self._asked.clear()
        live, self._live = self._live, {}
        for answer in live.values():
            answer.end(code)

    async def close(self) -> None:
        """End the session, so that the gateway keeps nothing of it."""
        self._stop_timer()
        if self.is_open:
            self._wire.send({"type": "close"})
            self._wire.bye()

    # ------------------------------------------------------------ what the wire tells it

    def hello(self) -> dict[str, Any] | None:
        """The first message of a connection: `resume`, if there is something to go on with."""
        session, token = self._session
        if not session or not (self._live or self._last_seq):
            return None
        offsets = dict.fromkeys(self._ended, -1)
        offsets |= {s: a.size for s, a in self._live.items() if s not in self._asked}
        return {
            "type": "resume",
            "session": session,
            "token": token,
            "last_seq": self._last_seq,
            "offsets": offsets,
        }

    def disconnected(self, *, session_gone: bool) -> None:
        """The connection ended."""
        self.is_open = self._welcome = False
        self._stop_timer()
        self._unacknowledged = 0
        simple = not self.target.subprotocol
        if simple:
            self.give_up(LOST)
        if session_gone or simple:
            self._session, self._last_seq = ("", ""), 0
            self._ended.clear()
            for stream in [s for s in self._live if s not in self._asked]:
                self._live.pop(stream).end("session_expired")
        self.lost.set()

    def heard(self, frame: HeardFrame, now: float) -> bool:
        """A frame came; whether it is what a new connection waits for."""
        if frame.seq:
            if frame.seq <= self._last_seq or not self._welcome:
                return False
            self._last_seq = frame.seq
            self._unacknowledged += 1
            self._sequenced(frame, now)
        elif frame.type == "checkpoint":
            level = frame.sequence_id
            self._ended = {s: seq for s, seq in self._ended.items() if seq > level}
        elif frame.type == "ping":
            self._wire.send({"type": "pong", "t": frame.t})
        elif frame.type in {"session", "resumed"}:
            return self._welcomed(frame)
        return False

    def _welcomed(self, frame: HeardFrame) -> bool:
        if frame.type == "session" and self.hello() is not None:
            return False  # provisional: the answer to `resume` is on its way
        if frame.type == "session":
            self._last_seq = 0
        else:
            self._last_seq = max(self._last_seq, frame.from_seq - 1)
        self._session = (frame.session, frame.token)
        self._welcome = True
        return True

    def _sequenced(self, frame: HeardFrame, now: float) -> None:
        self._asked.pop(frame.id, None)
        if frame.type == "token":
            answer = self._live.get(frame.id)
            if answer is not None:
                answer.heard(frame.delta.encode(), frame.tokens, now)
        elif frame.type in {"done", "error"} and frame.id:
            self._ended[frame.id] = frame.seq
            answer = self._live.pop(frame.id, None)
            if answer is not None:
                answer.end(frame.code)

    # ------------------------------------------------------------ acknowledging (§4.1)

    def acknowledge_soon(self) -> None:
        """After 8 frames at once, else within 50 ms."""
        if not self.target.subprotocol or not self._unacknowledged:
            return
        if self._unacknowledged >= ACK_EVERY:
            self._acknowledge()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACK_AFTER_S, self._acknowledge)

    def _acknowledge(self) -> None:
        self._stop_timer()
        self._unacknowledged = 0
        self._wire.acknowledge(self._last_seq + 1)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Wire(asyncio.Protocol):
    """The bytes of the connections, one after the other."""

    def __init__(self, target: Target, load: Load, who: Who, caller: SocketCaller) -> None:
        self._target, self._load, self._who, self._caller = target, load, who, caller
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._upgraded = False
        self._talk: Talk | None = None
        self._open: asyncio.Future[None] | None = None
        self._close_code = 0

    async def dial(self) -> None:
        """Connect and return when the session is there. Raises `OSError`."""
        self._open = asyncio.get_running_loop().create_future()
        self._data.clear()
        self._upgraded = False
        self._close_code = 0
        binary = self._target.subprotocol not in {"", JSON}
        self._talk = talk(self._target.subprotocol) if binary else None
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await connect_socket(self, self._target, self._who)
                await self._open
        except BaseException:
            self.abort()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self._transport = cast("asyncio.Transport", transport)
        headers = {"User-Agent": self._who.user}
        if self._target.subprotocol:
            headers["Sec-WebSocket-Protocol"] = self._target.subprotocol
        if self._who.key:
            headers["Authorization"] = f"Bearer {self._who.key}"
        host = f"{self._target.host}:{self._target.port}"
        self._transport.write(upgrade_request(host, self._target.path, headers))

    def data_received(self, data: bytes) -> None:
        """Read the frames that are whole."""
        now = perf_counter()
        self._data += data
        if not self._upgraded and not self._upgrade():
            return
        for opcode, payload in take_frames(self._data):
            if opcode == Opcode.TEXT:
                self._heard(read_json(payload), now)
            elif opcode == Opcode.BINARY and self._talk is not None:
                for frame, seq in self._talk.decode(payload):
                    self._heard(read_binary(frame, seq), now)
            elif opcode == Opcode.PING:
                self._write(Opcode.PONG, payload)
            elif opcode == Opcode.CLOSE:
                self._close_code = int.from_bytes(payload[:2], "big")
                self.abort()
        self._caller.acknowledge_soon()
        if self._who.slow:
            self._rest()

    def _upgrade(self) -> bool:
        head, found, rest = bytes(self._data).partition(b"\r\n\r\n")
        if not found:
            return False
        words = head.split(None, 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if status != 101:  # noqa: PLR2004 - switching protocols
            self._refuse(DialError(f"http_{status}", final=status in _REFUSED_FOR_GOOD))
            self.abort()
            return False
        self._data = bytearray(rest)
        self._upgraded = True
        resume = self._caller.hello()
        if resume is not None:
            self.send(resume)
        return True

    def _heard(self, frame: HeardFrame, now: float) -> None:
        if self._caller.heard(frame, now) and self._open is not None and not self._open.done():
            self._open.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The gateway, the network or this program closed it."""
        del exc
        code = self._close_code
        said = f"closed_{code}" if code else LOST
        self._refuse(DialError(said, final=code in CLOSE_RETRY_NEVER))
        self._caller.disconnected(session_gone=code == CloseCode.SESSION_UNKNOWN)

    def _refuse(self, error: DialError) -> None:
        if self._open is not None and not self._open.done():
            self._open.set_exception(error)
            self._open.exception()  # heard: who dialled may have given up

    # ------------------------------------------------------------ writing

    def send(self, body: dict[str, Any]) -> None:
        """Send a frame."""
        if self._talk is None:
            self._write(Opcode.TEXT, json.dumps(body).encode())
        else:
            self._write(Opcode.BINARY, cast("bytes", self._talk.encode(client_frame(body))))

    def acknowledge(self, seq: int) -> None:
        """Send an `ack`."""
        if self._talk is None:
            self._write(Opcode.TEXT, b'{"type":"ack","seq":%d}' % seq)
        else:
            self.send({"type": "ack", "seq": seq})

    def _write(self, opcode: Opcode, payload: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(opcode, payload))

    def _rest(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.pause_reading()
        asyncio.get_running_loop().call_later(self._load.slow_pause_s, self._read_on, transport)

    @staticmethod
    def _read_on(transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.resume_reading()

    def bye(self) -> None:
        """Close after what was written."""
        if self._transport is not None and not self._transport.is_closing():
            self._write(Opcode.CLOSE, (1000).to_bytes(2, "big"))
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
