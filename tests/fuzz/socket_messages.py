"""Messages of the three subprotocols: valid, wounded, or noise; whole, in fragments, in any cut."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from seedance.protocol.binary_codec import ClientEncoder, ServerDecoder
from seedance.protocol.errors import CloseCode, ErrorCode
from seedance.protocol.frames import ClientFrame, ErrorFrame, Pong, ServerFrame
from seedance.protocol.json_codec import client_body, decode_server
from tests.fuzz.mutation import ANY_JSON, Wounds, corpus
from tests.fuzz.verdict import Verdict
from tests.support.frame_strategies import CLIENT_FRAMES
from tests.support.scripts import script_messages

__all__ = ["PROTOCOLS", "fuzz_sockets"]

ANSWER_S = 10.0
MESSAGES_MAX = 8
JSON_PROTOCOL = "seedance.v2.json"
BINARY_PROTOCOLS = ("seedance.v2.proto", "seedance.v2.proto.zstd")
PROTOCOLS = (None, JSON_PROTOCOL, *BINARY_PROTOCOLS)
BATCHES_MAX = 4
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
# Three objects to be wounded, and a text that is none.
TEXTS = st.tuples(
    CLIENT_FRAMES.map(client_body),
    SPOKEN,
    st.dictionaries(st.text(max_size=8), ANY_JSON, max_size=4),
    st.text(max_size=60),
)
BATCHES = st.lists(CLIENT_FRAMES, min_size=1, max_size=3)
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


def _texts(wounds: Wounds, uses: int, number: int) -> Iterator[list[Message]]:
    """Example after example for the subprotocols of text."""
    random, drawn = wounds.random, corpus(TEXTS, uses, number)
    while True:
        messages: list[Message] = []
        for _ in range(random.randint(1, MESSAGES_MAX)):
            made = random.choice(random.choice(drawn))
            text = made if isinstance(made, str) else wounds.in_json(made)
            data = text.encode(errors="replace")
            kind = random.randrange(20)
            if kind == 0:
                messages.append(data)  # binary on a text subprotocol
            elif kind < 4:
                whole = data.decode()
                at = random.randint(0, len(whole))
                messages.append([whole[:at], whole[at:]])
            else:
                messages.append(data.decode())
        yield messages


def _binaries(
    wounds: Wounds, uses: int, number: int, *, compressed: bool
) -> Iterator[list[Message]]:
    """Example after example for the subprotocols of envelopes."""
    random, drawn = wounds.random, corpus(BATCHES, uses, number)
    while True:
        encoder = ClientEncoder(compressed=compressed)
        batches: list[list[ClientFrame]] = random.choices(drawn, k=random.randint(0, BATCHES_MAX))
        stream = b"".join(encoder.encode(batch) for batch in batches)
        if random.random() < 0.5:
            stream = wounds.in_bytes(stream)
        messages: list[Message] = [piece for piece in wounds.in_pieces(stream) if piece]
        if random.randrange(20) == 0:
            messages.append("text on a binary subprotocol")
        yield messages or [b""]


def fuzz_sockets(
    url: str, protocol: str | None, messages: int, number: int, verdict: Verdict
) -> None:
    """Send about as many messages of a subprotocol; `number` decides which."""
    wounds, name = Wounds(number), f"messages, {protocol or 'no subprotocol'}"
    compressed = protocol == BINARY_PROTOCOLS[1]
    if protocol in BINARY_PROTOCOLS:
        examples = _binaries(wounds, messages, number, compressed=compressed)
    else:
        examples = _texts(wounds, messages, number)
    talk = Talk(url, protocol)
    while verdict.sent[name] < messages:
        example = next(examples)
        verdict.sent[name] += len(example)
        if compressed:
            talk.close()  # its stream belongs to one connection
        with verdict.judging((protocol, example)):
            verdict.answers[talk.say(example)] += 1
    talk.close()
