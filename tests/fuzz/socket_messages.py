"""Messages of the three subprotocols: valid, wounded, or noise; whole, in fragments, in any cut."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress

from hypothesis import given, seed
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from seedance.protocol.binary_codec import ClientEncoder, ServerDecoder
from seedance.protocol.errors import CloseCode, ErrorCode
from seedance.protocol.frames import ErrorFrame, Pong, ServerFrame
from seedance.protocol.json_codec import client_body, decode_server
from tests.fuzz.mutation import ANY_JSON, many, mutated_bytes, mutated_json, pieces
from tests.fuzz.verdict import Verdict
from tests.support.frame_strategies import CLIENT_FRAMES
from tests.support.scripts import script_messages

__all__ = ["fuzz_sockets"]

ANSWER_S = 10.0
MESSAGES_MAX = 8
JSON_PROTOCOL = "seedance.v2.json"
BINARY_PROTOCOLS = ("seedance.v2.proto", "seedance.v2.proto.zstd")
# What a client at fault may be told; nothing that says the fault is ours.
CLOSES = {
    CloseCode.NORMAL,
    CloseCode.UNSUPPORTED_DATA,
    CloseCode.INVALID_PAYLOAD,
    CloseCode.MESSAGE_TOO_BIG,
    CloseCode.PROTOCOL_ERROR,
    CloseCode.TIMEOUT,
    CloseCode.SESSION_UNKNOWN,
}

SPOKEN = st.fixed_dictionaries(
    {"type": st.just("generate"), "messages": st.just(script_messages([b"a", b"\xf0\x9f", b"b"]))},
    optional={"id": st.text(max_size=3), "stream": st.booleans(), "seed": ANY_JSON},
)
TEXTS = st.one_of(
    mutated_json(CLIENT_FRAMES.map(client_body)),
    mutated_json(SPOKEN),
    mutated_json(st.dictionaries(st.text(max_size=8), ANY_JSON, max_size=4)),
    st.text(max_size=60),
)
Message = str | bytes | list[str] | list[bytes]


class Talk:
    """A client's connection of one subprotocol (None: it offers none), opened anew when closed."""

    def __init__(self, url: str, protocol: str | None) -> None:
        self.protocol = protocol
        self._url = url
        self._open = ExitStack()
        self._connection: ClientConnection | None = None
        self._decoder = ServerDecoder(compressed=False)
        self._pings = 0

    def say(self, messages: Sequence[Message]) -> str:
        """Send them, then see that somebody listens still, or has closed as the contract says."""
        connection = self._connected()
        try:
            for message in messages:
                connection.send(message)
            if self.protocol in BINARY_PROTOCOLS:
                self._heard_by_socket(connection)
            else:
                self._heard(connection)
        except ConnectionClosed as closed:
            self.close()
            code = closed.rcvd.code if closed.rcvd else None
        else:
            return "open"
        assert code in CLOSES, f"closed with {code}"
        return f"close {code}"

    def close(self) -> None:
        """End it."""
        self._open.close()
        self._connection = None

    def _connected(self) -> ClientConnection:
        if self._connection is None:
            offered = [Subprotocol(self.protocol)] if self.protocol else None
            self._connection = self._open.enter_context(
                connect(
                    self._url,
                    subprotocols=offered,
                    compression=None,
                    proxy=None,
                    ping_interval=None,
                )
            )
            self._decoder = ServerDecoder(compressed=self.protocol == BINARY_PROTOCOLS[1])
        return self._connection

    def _heard(self, connection: ClientConnection) -> None:
        """Read everything up to the answer to a ping."""
        self._pings += 1
        connection.send(json.dumps({"type": "ping", "t": self._pings}))
        while True:
            message = connection.recv(timeout=ANSWER_S)
            assert isinstance(message, str)
            frame, _ = decode_server(message)
            _sound(frame)
            if isinstance(frame, Pong) and frame.t == self._pings:
                return

    def _heard_by_socket(self, connection: ClientConnection) -> None:
        """Half an envelope may be waiting for its rest: only the socket can be asked."""
        answered = connection.ping()
        end_at = time.monotonic() + ANSWER_S
        while not answered.is_set():
            assert time.monotonic() < end_at, "no pong"
            with suppress(TimeoutError):
                message = connection.recv(timeout=0.01)
                assert isinstance(message, bytes)
                for frame, _ in self._decoder.feed(message):
                    _sound(frame)


def _sound(frame: ServerFrame) -> None:
    """No fault of ours in it."""
    if isinstance(frame, ErrorFrame):
        assert frame.code is not ErrorCode.INTERNAL, frame
        assert "Traceback" not in frame.message, frame


@st.composite
def _texts(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = []
    for text in draw(st.lists(TEXTS, min_size=1, max_size=MESSAGES_MAX)):
        data = text.encode(errors="replace")
        kind = draw(st.integers(0, 19))
        if kind == 0:
            messages.append(data)  # binary on a text subprotocol
        elif kind < 4:
            whole = text.encode(errors="replace").decode()
            at = draw(st.integers(0, len(whole)))
            messages.append([whole[:at], whole[at:]])
        else:
            messages.append(data.decode())
    return messages


@st.composite
def _binaries(draw: st.DrawFn, protocol: str) -> list[Message]:
    batches = st.lists(CLIENT_FRAMES, min_size=1, max_size=3)
    encoder = ClientEncoder(compressed=protocol == BINARY_PROTOCOLS[1])
    stream = b"".join(encoder.encode(batch) for batch in draw(st.lists(batches, max_size=4)))
    if draw(st.booleans()):
        stream = draw(mutated_bytes(st.just(stream)))
    messages: list[Message] = [piece for piece in pieces(draw, stream) if piece]
    if draw(st.integers(0, 19)) == 0:
        messages.append(draw(st.text(max_size=8)))
    return messages or [b""]


def _examples() -> Iterable[tuple[str | None, st.SearchStrategy[list[Message]]]]:
    yield None, _texts()
    yield JSON_PROTOCOL, _texts()
    for protocol in BINARY_PROTOCOLS:
        yield protocol, _binaries(protocol)


def fuzz_sockets(url: str, messages: int, number: int, verdict: Verdict) -> None:
    """Send about as many messages; `number` decides which."""
    kinds = list(_examples())
    for protocol, strategy in kinds:
        _fuzz_one(Talk(url, protocol), strategy, messages // len(kinds), number, verdict)


def _fuzz_one(
    talk: Talk,
    strategy: st.SearchStrategy[list[Message]],
    messages: int,
    number: int,
    verdict: Verdict,
) -> None:
    name = f"messages, {talk.protocol or 'no subprotocol'}"

    @seed(number)
    @many(messages)
    @given(strategy)
    def send(example: list[Message]) -> None:
        if verdict.sent[name] >= already + messages:
            return
        verdict.sent[name] += len(example)
        # A compressed stream belongs to one connection.
        if talk.protocol == BINARY_PROTOCOLS[1]:
            talk.close()
        with verdict.judging((talk.protocol, example)):
            verdict.answers[talk.say(example)] += 1

    already = verdict.sent[name]
    send()
    talk.close()
