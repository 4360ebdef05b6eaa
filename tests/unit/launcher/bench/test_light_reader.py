"""The client that parses no frame sees what the one that parses each of them sees."""

from __future__ import annotations

import json

import pytest

from launcher.bench.light_reader import LightReader
from launcher.bench.reader import ACK_EVERY

UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


class _Transport:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


def _frame(body: dict[str, object]) -> bytes:
    payload = json.dumps(body, separators=(",", ":")).encode()
    size = bytes((len(payload),)) if len(payload) < 126 else b"\x7e" + len(payload).to_bytes(2)
    return b"\x81" + size + payload


def _token(seq: int) -> bytes:
    body = {"type": "token", "seq": seq, "id": "s", "offset": (seq - 2) * 8, "delta": " 0000001"}
    # 125 bytes, so that the header's second byte is a closing brace.
    return _frame(body | {"timestamp": int("1" * (125 - len(_frame(body)) + 2 - 13))})


async def _reader(*, windowed: bool = True) -> tuple[LightReader, _Transport]:
    reader, transport = LightReader("h:1", windowed=windowed, name="bench"), _Transport()
    reader.connection_made(transport)
    return reader, transport


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_what_matters_is_seen_however_it_is_cut(size: int) -> None:
    """The greeting, where the text is, what to acknowledge, a ping and the end."""
    assert _token(2)[:2] == b"\x81}"
    reader, transport = await _reader()
    reader.late_s = []
    data = UPGRADED + _frame({"type": "session", "heartbeat": {"session": 15}, "tenant": "local"})
    data += _frame({"type": "ping", "t": 5})
    data += _frame({"type": "accepted", "seq": 1, "id": "s"})
    data += b"".join(_token(seq) for seq in range(2, 2 + ACK_EVERY))
    data += _frame({"type": "done", "seq": 2 + ACK_EVERY, "id": "s", "usage": {"total_tokens": 9}})
    for at in range(0, len(data), size):
        reader.data_received(data[at : at + size])
    assert reader.greeted.done()
    assert reader.ended.done()
    assert reader.seq == 2 + ACK_EVERY
    assert reader.offset == (ACK_EVERY - 1) * 8
    assert len(reader.late_s) == ACK_EVERY
    assert b'{"type": "pong", "t": 5}' in transport.written
    reader.acknowledge()
    assert b'{"type":"ack","seq":%d}' % (3 + ACK_EVERY) in transport.written


async def test_a_simple_client_acknowledges_nothing() -> None:
    """It offers no subprotocol, and TCP is its window."""
    reader, transport = await _reader(windowed=False)
    reader.data_received(UPGRADED + b"".join(_token(seq) for seq in range(2, 30)))
    assert reader.seq == 29
    assert b'"ack"' not in transport.written


async def test_whoever_waits_for_a_greeting_hears_of_the_end() -> None:
    """A connection that ends before `session` is an error of that wait."""
    reader, _ = await _reader()
    reader.data_received(UPGRADED)
    reader.connection_lost(None)
    with pytest.raises(ConnectionError):
        await reader.greeted
