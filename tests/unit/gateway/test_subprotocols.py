"""What the subprotocols put on the wire, and when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.subprotocols import GATHER_S, BinarySpeech, JsonSpeech
from seedance.protocol.binary_codec import ServerDecoder
from seedance.protocol.envelope import seal
from seedance.protocol.errors import CloseCode, ProtocolFault, SeedanceError
from seedance.protocol.frames import Done, GoAway, Ping, Timing, Token, Usage
from seedance.protocol.json_codec import decode_server, encode_server
from tests.support.stepped_loop import SteppedLoop

# A real answer, as a gateway sent it to the SDK: one frame a line, tokens 6 ms apart.
CHAT_STREAM = Path(__file__).resolve().parents[2] / "vectors" / "chat_stream.jsonl"


class Wire:
    """A socket that keeps what it is given, with the time."""

    def __init__(self, loop: SteppedLoop) -> None:
        self.sent: list[tuple[float, str | bytes]] = []
        self.closed: int | None = None
        self._loop = loop

    def send_text(self, text: str) -> None:
        self.sent.append((self._loop.time(), text))

    def send_bytes(self, data: bytes) -> None:
        self.sent.append((self._loop.time(), data))

    def send_close(self, code: int, _reason: str) -> None:
        self.closed = code


def played(compressed: bool, pace: float = 1.0) -> tuple[Wire, list[tuple[float, str]]]:
    """The recorded stream said at its own times, `pace` times as slow; what left, what was said."""
    loop = SteppedLoop()
    wire = Wire(loop)
    said = BinarySpeech(wire, loop, compressed=compressed)
    lines = CHAT_STREAM.read_text().splitlines()
    began = next(f["timestamp"] for f in map(json.loads, lines) if f["type"] == "token")
    frames = []
    at = 0.0
    for line in lines:
        stamped = (json.loads(line).get("timestamp", began) - began) / 1000 * pace
        if stamped > at:
            loop.run_to(at := stamped)
        said.send(*decode_server(line), line)
        frames.append((at, line))
    loop.run_to(at + 1)
    decoder = ServerDecoder(compressed=compressed)
    found = [frame for _, message in wire.sent for frame in decoder.feed(message)]
    assert [encode_server(*frame) for frame in found] == lines
    return wire, frames


# 2.46 times as slow: 64 tokens a second instead of 158.
@pytest.mark.parametrize("pace", [1.0, 2.46], ids=["158 tokens/s", "64 tokens/s"])
@pytest.mark.parametrize("compressed", [False, True], ids=["proto", "proto.zstd"])
def test_a_chat_is_5_8_times_smaller_than_its_json(compressed: bool, pace: float) -> None:
    """The recorded stream needs at least 5.8 times fewer bytes than its JSON frames (§5)."""
    wire, frames = played(compressed, pace)
    json_bytes = sum(len(line.encode()) for _, line in frames)
    assert json_bytes / sum(len(message) for _, message in wire.sent) >= 5.8


def test_tokens_leave_in_the_turn_they_came_in() -> None:
    """`proto` holds nothing back."""
    wire, frames = played(compressed=False)
    assert {at for at, _ in wire.sent} == {at for at, _ in frames}


def test_compressed_tokens_wait_20_ms_at_most() -> None:
    """And only behind others: what comes alone leaves at once."""
    wire, frames = played(compressed=True)
    departures = [at for at, _ in wire.sent]
    for at, _ in frames:
        assert min(d for d in departures if d >= at) - at <= GATHER_S + 1e-9
    tokens = [a for a, line in frames if '"type":"token"' in line]
    assert tokens[0] in departures


def _token(offset: int) -> tuple[Token, int]:
    return Token("s", offset, "x", 1), offset + 1


def test_a_frame_that_is_no_token_takes_the_waiting_ones_along() -> None:
    """In their order; `done` does not wait."""
    loop = SteppedLoop()
    wire = Wire(loop)
    said = BinarySpeech(wire, loop, compressed=True)
    done = (Done("s", "stop", Usage(), Timing()), 4)
    for frame in (_token(0), _token(1)):
        loop.run_to(loop.time() + 0.001)
        said.send(*frame)
        loop.run_to(loop.time())
    assert len(wire.sent) == 1
    assert said.waiting
    said.send(*_token(2)[:1], 3)
    said.send(*done)
    loop.run_to(loop.time())
    assert not said.waiting
    decoder = ServerDecoder(compressed=True)
    assert [seq for _, m in wire.sent for _, seq in decoder.feed(m)] == [1, 2, 3, 4]
    loop.run_to(1)
    assert len(wire.sent) == 2


def test_what_waits_can_be_asked_for() -> None:
    """A close does, so that a refusal arrives before it; then nothing is left."""
    loop = SteppedLoop()
    wire = Wire(loop)
    said = BinarySpeech(wire, loop, compressed=False)
    said.flush()
    assert wire.sent == []
    said.send(GoAway("drain", 1))
    said.flush()
    assert len(wire.sent) == 1
    loop.run_to(1)
    assert len(wire.sent) == 1


def test_one_turn_of_the_loop_is_one_envelope() -> None:
    """However many frames are said in it."""
    loop = SteppedLoop()
    wire = Wire(loop)
    said = BinarySpeech(wire, loop, compressed=False)
    for offset in range(5):
        said.send(*_token(offset))
    loop.run_to(0)
    assert len(wire.sent) == 1


@pytest.mark.parametrize("compressed", [False, True])
def test_a_text_message_closes_a_binary_connection(compressed: bool) -> None:
    """1003, as a binary one closes a JSON connection (§3, CASES 22)."""
    loop = SteppedLoop()
    for said, message in (
        (BinarySpeech(Wire(loop), loop, compressed=compressed), '{"type":"ping"}'),
        (JsonSpeech(Wire(loop)), b"\xca\xfe\xba\xbe\0\0\0\0"),
    ):
        with pytest.raises(ProtocolFault) as fault:
            list(said.hear(message))
        assert fault.value.close_code is CloseCode.UNSUPPORTED_DATA


@pytest.mark.parametrize("message", ["[]", '"x"', "null", "{", "", "nonsense"])
def test_what_is_no_object_closes(message: str) -> None:
    """It is not of this protocol at all: 4400 (CASES 22)."""
    with pytest.raises(ProtocolFault) as fault:
        list(JsonSpeech(Wire(SteppedLoop())).hear(message))
    assert fault.value.close_code is CloseCode.PROTOCOL_ERROR


@pytest.mark.parametrize("message", ['{"type":"what"}', "{}", '{"prompt":"\\ud83d"}'])
def test_a_bad_object_is_a_refusal(message: str) -> None:
    """The connection goes on (CASES 20)."""
    [[refusal]] = JsonSpeech(Wire(SteppedLoop())).hear(message)
    assert isinstance(refusal, SeedanceError)


def test_json_leaves_at_once() -> None:
    """As the log has it, if it has it."""
    wire = Wire(SteppedLoop())
    said = JsonSpeech(wire)
    said.send(Ping(1))
    said.send(*_token(0), "as logged")
    said.flush()
    assert [message for _, message in wire.sent] == ['{"type":"ping","t":1}', "as logged"]
    assert [list(frames) for frames in said.hear('{"type":"ping","t":1}')] == [[Ping(1)]]


def test_an_empty_envelope_says_nothing() -> None:
    """It holds a batch without frames (§5)."""
    loop = SteppedLoop()
    said = BinarySpeech(Wire(loop), loop, compressed=True)
    assert [list(frames) for frames in said.hear(seal(b"") * 2)] == [[], []]


@pytest.mark.parametrize("compressed", [False, True])
def test_what_cannot_be_encoded_closes_with_1011(*, compressed: bool) -> None:
    """The client is told, rather than left without frames that were numbered."""
    loop = SteppedLoop()
    wire = Wire(loop)
    said = BinarySpeech(wire, loop, compressed=compressed)
    said.send(Token("a", 0, "x", 1 << 70), 1)
    loop.run_to(1)
    assert (wire.closed, wire.sent) == (CloseCode.INTERNAL_ERROR, [])
