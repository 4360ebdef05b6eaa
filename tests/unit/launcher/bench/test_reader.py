"""The benchmarks' light client, byte by byte."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from launcher.bench.reader import ACK_EVERY, Reader, script_messages

UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


class _Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def texts(self) -> Iterator[dict[str, object]]:
        """The frames written since the handshake; keys of zeros mask nothing."""
        data = self.written.partition(b"\r\n\r\n")[2]
        while data:
            size, head = data[1] & 0x7F, 6
            if size == 126:
                size, head = int.from_bytes(data[2:4], "big"), 8
            if data[0] == 0x81:
                yield json.loads(data[head : head + size])
            data = data[head + size :]


def _frame(body: dict[str, object]) -> bytes:
    payload = json.dumps(body, separators=(",", ":")).encode()
    return bytes((0x81, 126)) + len(payload).to_bytes(2, "big") + payload


def _token(seq: int) -> bytes:
    return _frame({"type": "token", "seq": seq, "id": "s", "offset": 0, "delta": "x"})


async def _reader(*, windowed: bool = True) -> tuple[Reader, _Transport]:
    reader, transport = Reader("h:1", windowed=windowed, name="bench"), _Transport()
    reader.connection_made(transport)
    return reader, transport


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_frames_are_read_however_they_are_cut(size: int) -> None:
    """Tokens, a ping and the end are seen in pieces of any size, and answered as the contract asks."""
    reader, transport = await _reader()
    tokens = b"".join(_token(seq) for seq in range(1, ACK_EVERY + 1))
    end = _frame({"type": "done", "seq": ACK_EVERY + 1, "id": "s"})
    data = UPGRADED + tokens + _frame({"type": "ping", "t": 5}) + end
    for at in range(0, len(data), size):
        reader.data_received(data[at : at + size])
    assert reader.open.done()
    assert reader.ended.done()
    assert reader.tokens == ACK_EVERY
    assert {"type": "pong", "t": 5} in transport.texts()
    acks = [text["seq"] for text in transport.texts() if text["type"] == "ack"]
    assert acks[0] in (ACK_EVERY + 1, ACK_EVERY + 2)  # after eight frames, or all at once


async def test_a_simple_client_acknowledges_nothing() -> None:
    """It offers no subprotocol, and TCP is its window."""
    reader, transport = await _reader(windowed=False)
    reader.data_received(UPGRADED + b"".join(_token(seq) for seq in range(1, 30)))
    assert reader.tokens == 29
    assert b"Sec-WebSocket-Protocol" not in transport.written
    assert not list(transport.texts())


async def test_a_close_says_its_code() -> None:
    """Whoever waits for the end hears why there is none."""
    reader, _ = await _reader()
    reader.data_received(UPGRADED + bytes((0x88, 2)) + (4408).to_bytes(2, "big"))
    with pytest.raises(ConnectionError, match="4408"):
        await reader.ended


async def test_a_question_is_one_masked_frame() -> None:
    """Its length may need two bytes; options stand beside the messages."""
    reader, transport = await _reader()
    messages = script_messages([b"word "], dt_ms=1, repeat=3)
    reader.ask(messages, on_disconnect="cancel")
    assert list(transport.texts()) == [{"messages": messages, "on_disconnect": "cancel"}]
