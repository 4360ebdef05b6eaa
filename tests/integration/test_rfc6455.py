"""WebSocket as RFC 6455 has it, byte by byte: what conforming test suites ask of a server."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway
from tests.support.raw_websocket import client_frame, close_code, server_frames, upgraded

CONTINUE, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
HELLO = b'{"type":"ping","t":1,"\xc3\xa9\xf0\x9f\x98\x81":0}'


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayUnderTest]:
    async with running_gateway(FakeUpstream(FakeCluster())) as running:
        yield running


def _closed(url: str, wire: Sequence[bytes]) -> int | None:
    """The close code after these frames; each is a TCP segment of its own."""
    with upgraded(url) as sock:
        try:
            for frame in wire:
                sock.sendall(frame)
        except OSError:
            pass  # it has heard enough
        return close_code(sock)


def _close(code: int, reason: bytes = b"") -> bytes:
    return client_frame(CLOSE, struct.pack(">H", code) + reason)


# §5.2 to §5.5, §7.4: each of these frames fails the connection.
FAULTS = {
    **{
        f"reserved bits {bits}": (client_frame(TEXT, HELLO, reserved=bits), 1002)
        for bits in (1, 2, 4, 7)
    },
    **{
        f"reserved opcode {opcode}": (client_frame(opcode, b""), 1002)
        for opcode in (0x3, 0x4, 0x5, 0x6, 0x7, 0xB, 0xC, 0xD, 0xE, 0xF)
    },
    "no mask": (client_frame(TEXT, HELLO, masked=False), 1002),
    "a ping in pieces": (client_frame(PING, b"", final=False), 1002),
    "a close in pieces": (client_frame(CLOSE, b"", final=False), 1002),
    "a ping of 126 bytes": (client_frame(PING, bytes(126)), 1002),
    "a close of 126 bytes": (_close(1000, b"x" * 124), 1002),
    "a continuation of nothing": (client_frame(CONTINUE, HELLO), 1002),
    "a text within a text": (
        client_frame(TEXT, b"{", final=False) + client_frame(TEXT, HELLO),
        1002,
    ),
    "a binary within a text": (
        client_frame(TEXT, b"{", final=False) + client_frame(BINARY, b""),
        1002,
    ),
    "half a close code": (client_frame(CLOSE, b"\x03"), 1002),
    "a reason that is not UTF-8": (_close(1000, b"\xce\xba\xed\xa0\x80"), 1007),
    **{
        f"close code {code}": (_close(code), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65535)
    },
    "text that is not UTF-8": (client_frame(TEXT, b'{"a":"\xed\xa0\x80"}'), 1007),
    "text that ends within a character": (client_frame(TEXT, b'"\xf0\x9f\x98'), 1007),
    "overlong UTF-8": (client_frame(TEXT, b'"\xc0\xaf"'), 1007),
    "beyond Unicode": (client_frame(TEXT, b'"\xf4\x90\x80\x80"'), 1007),
    "bad text in pieces": (
        client_frame(TEXT, b'"\xf0\x9f', final=False) + client_frame(CONTINUE, b'\x98"'),
        1007,
    ),
}


async def test_what_fails_the_connection(gateway: GatewayUnderTest) -> None:
    """It is closed with the code that the RFC names for this fault."""
    for name, (wire, code) in FAULTS.items():
        assert await asyncio.to_thread(_closed, gateway.url, [wire]) == code, name


async def test_a_close_is_answered(gateway: GatewayUnderTest) -> None:
    """§5.5.1: with the code that came, whatever its reason; nothing after it is heard."""
    for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 4999):
        for wire in ([_close(code)], [_close(code, "é".encode()), client_frame(TEXT, b"\xff")]):
            assert await asyncio.to_thread(_closed, gateway.url, wire) == code
    # A close without a code is answered by one without a code.
    assert await asyncio.to_thread(_closed, gateway.url, [client_frame(CLOSE, b"")]) in (0, 1005)


def _answers(url: str, wire: Sequence[bytes], pongs: int = 1) -> list[bytes]:
    """The payloads of the server's pongs, of the socket's and the contract's kind, in their order."""
    found: list[bytes] = []
    with upgraded(url) as sock:
        for piece in wire:
            sock.sendall(piece)
        for opcode, payload in server_frames(sock):
            if opcode == PONG:
                found.append(payload)
            elif json.loads(payload)["type"] == "pong":
                found.append(b"heard")
            if found.count(b"heard") == pongs:
                break
    return found


async def test_a_message_in_pieces(gateway: GatewayUnderTest) -> None:
    """§5.4: cut anywhere, also within a character, with a ping in between that is answered first."""
    for cut in range(len(HELLO) + 1):
        wire = [
            client_frame(TEXT, HELLO[:cut], final=False),
            client_frame(PING, b"in between"),
            client_frame(CONTINUE, b"", final=False),
            client_frame(CONTINUE, HELLO[cut:]),
        ]
        answers = await asyncio.to_thread(_answers, gateway.url, wire)
        assert answers == [b"in between", b"heard"], cut


async def test_frames_in_any_cut_of_tcp(gateway: GatewayUnderTest) -> None:
    """A frame that comes byte by byte, and many frames that come at once, are the same frames."""
    wire = client_frame(PING, b"a" * 125) + client_frame(PONG, b"unasked")
    wire += client_frame(TEXT, HELLO)
    for cut, times in (([wire], 1), ([bytes((byte,)) for byte in wire], 1), ([wire * 3], 3)):
        answers = await asyncio.to_thread(_answers, gateway.url, cut, times)
        assert sorted(answers) == sorted([b"a" * 125, b"heard"] * times)


async def test_lengths_of_each_form(gateway: GatewayUnderTest) -> None:
    """§5.2, CASES 39: lengths in 7, 16 and 64 bits; 1 MiB is read whole, one byte more is 1009."""
    for size in (125, 126, 127, 128, 65_535, 65_536, 1024 * 1024):
        padding = size - len(HELLO) - len(b',"x":""')
        message = HELLO[:-1] + b',"x":"' + b"x" * padding + b'"}'
        assert len(message) == size
        wire = [client_frame(TEXT, message)]
        assert await asyncio.to_thread(_answers, gateway.url, wire) == [b"heard"]
    assert (
        await asyncio.to_thread(_closed, gateway.url, [client_frame(TEXT, message + b" ")]) == 1009
    )
