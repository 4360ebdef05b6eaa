"""The binary subprotocols over real sockets: the SDK, hostile bytes, resumes (§5)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import zstandard
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from gateway.store.memory import MemoryStore
from mesh.clock import SystemClock
from seedance.client import AsyncSeedanceClient
from seedance.protocol.binary_codec import ClientEncoder, ServerDecoder
from seedance.protocol.envelope import MAGIC, seal
from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import (
    Ack,
    ClientFrame,
    Done,
    ErrorFrame,
    Generate,
    GoAway,
    Ping,
    Pong,
    Resume,
    Resumed,
    ServerFrame,
    SessionFrame,
    Token,
)
from seedance.protocol.reconnect import Backoff
from seedance.protocol.request import GenerateRequest
from seedance.v2.frames_pb2 import Frame, FrameBatch
from tests.support import fake_upstream
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway
from tests.support.waiting import SURELY_S, wait_until

PROMPT = " ".join(f"word{n} 量子" for n in range(300))
BINARY = ["seedance.v2.proto", "seedance.v2.proto.zstd"]
CHOICES = ["auto", "json", "proto", "proto.zstd"]
BINARIES = pytest.mark.parametrize("subprotocol", BINARY)
PING = FrameBatch(frames=[Frame(ping=Frame.Time(whole=1))]).SerializeToString()


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayUnderTest]:
    async with running_gateway(FakeUpstream(FakeCluster())) as running:
        yield running


class BinaryWire:
    """A raw client: frames or bytes in, frames out."""

    def __init__(self, connection: ClientConnection, subprotocol: str) -> None:
        compressed = subprotocol.endswith("zstd")
        self.connection = connection
        self.envelope = ClientEncoder(compressed=compressed).encode
        self.seen: list[tuple[ServerFrame, int | None]] = []
        self._decoder = ServerDecoder(compressed=compressed)
        self._read = 0

    async def send(self, *frames: ClientFrame) -> None:
        await self.connection.send(self.envelope(frames))

    async def until(self, kind: type) -> ServerFrame:
        """The next frame of a type."""
        while True:
            while self._read < len(self.seen):
                self._read += 1
                frame = self.seen[self._read - 1][0]
                if isinstance(frame, kind):
                    return frame
            async with asyncio.timeout(SURELY_S):
                message = await self.connection.recv()
            assert isinstance(message, bytes)
            self.seen += self._decoder.feed(message)

    async def close_code(self) -> int:
        with suppress(ConnectionClosed):
            async with asyncio.timeout(SURELY_S):
                while True:
                    self.seen += self._decoder.feed(await self.connection.recv())
        return self.connection.close_code or 0

    @property
    def last_seq(self) -> int:
        return max((seq or 0 for _, seq in self.seen), default=0)

    @property
    def text(self) -> str:
        return "".join(frame.delta for frame, _ in self.seen if isinstance(frame, Token))


@asynccontextmanager
async def binary_wire(url: str, subprotocol: str) -> AsyncIterator[BinaryWire]:
    offered = [Subprotocol(subprotocol)]
    async with connect(
        url, subprotocols=offered, compression=None, proxy=None, max_queue=None
    ) as connection:
        assert connection.subprotocol == subprotocol
        wire = BinaryWire(connection, subprotocol)
        await wire.until(SessionFrame)
        yield wire


@pytest.mark.parametrize("subprotocol", CHOICES)
async def test_the_sdk_streams(gateway: GatewayUnderTest, subprotocol: str) -> None:
    """The same text, usage and errors whatever it offers to speak."""
    async with AsyncSeedanceClient(gateway.url, subprotocol=subprotocol) as client:
        stream = client.chat(prompt=PROMPT)
        assert "".join([chunk.delta async for chunk in stream]) == PROMPT
        assert stream.usage is not None
        assert stream.usage.completion_tokens == len(PROMPT.split())
        completion = await client.chat(prompt=PROMPT, stream=False)
        assert completion.text == PROMPT
        with pytest.raises(SeedanceError, match="model"):
            await client.chat(prompt="x", model="no such", stream=False)


@pytest.mark.parametrize("subprotocol", CHOICES)
async def test_the_sdk_resumes_on_another_gateway(subprotocol: str) -> None:
    """A gateway's end in mid-stream: the text goes on exactly at another one."""
    store, cluster = MemoryStore(SystemClock(), 120), FakeCluster()
    async with (
        running_gateway(FakeUpstream(cluster), store) as second,
        running_gateway(
            FakeUpstream(cluster), store, gateways=f"ws://127.0.0.1:{second.port}"
        ) as first,
        AsyncSeedanceClient(
            first.url, subprotocol=subprotocol, backoff=Backoff(base_s=0.01)
        ) as client,
    ):
        text = ""
        async for chunk in client.chat(prompt=PROMPT):
            assert chunk.offset == len(text.encode())
            text += chunk.delta
            if len(text) > 200 and not first.stop.is_set():
                first.stop.set()
                for connection in first.connections._open:
                    connection._socket.transport.abort()
        assert text == PROMPT
        assert len(second.connections) == 1


@pytest.mark.parametrize("subprotocol", BINARY)
async def test_a_session_moves_between_subprotocols(
    gateway: GatewayUnderTest, subprotocol: str
) -> None:
    """Numbers and offsets belong to the session; only the connection's differences begin anew."""
    [other] = set(BINARY) - {subprotocol}
    async with binary_wire(gateway.url, subprotocol) as first:
        hello = first.seen[0][0]
        assert isinstance(hello, SessionFrame)
        await first.send(Generate("s", GenerateRequest(prompt=PROMPT)))
        while first.last_seq < 10:
            await first.until(Token)
    offsets = {"s": len(first.text.encode())}
    async with binary_wire(gateway.url, other) as second:
        await second.send(Resume(hello.session, hello.token, first.last_seq, offsets), Ping(7))
        resumed = await second.until(Resumed)
        assert isinstance(resumed, Resumed)
        assert resumed.from_seq == first.last_seq + 1
        while not any(isinstance(frame, Done) for frame, _ in second.seen):
            await second.until(Token | Done)
            await second.send(Ack(second.last_seq + 1))
        assert Pong(7) in [frame for frame, _ in second.seen]
    assert first.text + second.text == PROMPT


@BINARIES
async def test_one_byte_per_message(gateway: GatewayUnderTest, subprotocol: str) -> None:
    """An envelope may come in as many messages as it has bytes, and several in one."""
    async with binary_wire(gateway.url, subprotocol) as wire:
        for byte in wire.envelope([Ping(1)]):
            await wire.connection.send(bytes([byte]))
        assert await wire.until(Pong) == Pong(1)
        await wire.connection.send(b"".join(wire.envelope([Ping(n)]) for n in (2, 3)))
        assert [await wire.until(Pong), await wire.until(Pong)] == [Pong(2), Pong(3)]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\xca\xfe\xba\xbf\0\0\0\0", 4400),
        (b"\0", 4400),
        (MAGIC + struct.pack(">I", 1024 * 1024 + 1), 4400),
        (seal(b"\xff"), 4400),
        (seal(FrameBatch(frames=[Frame()] * 1025).SerializeToString()), 4400),
        (seal(PING) + b"trailing", 4400),
        ('{"type":"ping"}', 1003),
        (bytes(1024 * 1024 + 1), 1009),
    ],
    ids=["magic", "byte", "length", "payload", "frames", "sticky", "text", "big"],
)
async def test_close_codes(gateway: GatewayUnderTest, message: str | bytes, code: int) -> None:
    """What cannot be read closes with its own code, and nobody else notices (CASES 22)."""
    async with (
        binary_wire(gateway.url, BINARY[0]) as wire,
        binary_wire(gateway.url, BINARY[0]) as other,
    ):
        await wire.connection.send(message)
        assert await wire.close_code() == code
        await other.send(Ping(1))
        assert await other.until(Pong) == Pong(1)


def _window_17(data: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=17)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(data) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


def _window_12(data: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=12)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


@pytest.mark.parametrize(
    "message",
    [
        seal(PING),
        seal(_window_12(bytes(1024 * 1024 + 1))),
        seal(_window_12(bytes(100 * 1024 * 1024))),
        seal(_window_17(PING)),
        # Fields that nobody knows, 700 kB in each envelope: together more than a message may say.
        seal(_window_12(b"\xfa\x7f\xe0\xdc\x2a" + bytes(700_000))) * 2,
    ],
    ids=["plain", "over 1 MiB", "100 MiB", "window", "twice"],
)
async def test_compressed_nonsense_closes_with_4400(
    gateway: GatewayUnderTest, message: bytes
) -> None:
    """Bytes that are not zstd, that expand too far, or that ask for too much memory."""
    async with binary_wire(gateway.url, BINARY[1]) as wire:
        await wire.connection.send(message)
        assert await wire.close_code() == 4400


@BINARIES
async def test_half_an_envelope_at_the_end_is_dropped(
    gateway: GatewayUnderTest, subprotocol: str
) -> None:
    """What came whole before it counts; the close is an ordinary one."""
    async with binary_wire(gateway.url, subprotocol) as wire:
        whole, half = wire.envelope([Ping(1)]), wire.envelope([Ping(2)])[:-1]
        await wire.connection.send(whole + half)
        assert await wire.until(Pong) == Pong(1)
        await wire.connection.close()
        assert wire.connection.close_code == 1000
        assert len(wire.seen) == 2
    await wait_until(lambda: len(gateway.connections) == 0)


@BINARIES
async def test_a_wrong_field_is_answered(gateway: GatewayUnderTest, subprotocol: str) -> None:
    """`bad_request` naming it; frames before and after in the same batch count."""
    async with binary_wire(gateway.url, subprotocol) as wire:
        wrong = Generate("s", GenerateRequest(prompt="x", max_tokens=0))
        await wire.send(Ping(1), wrong, Ping(2))
        await wire.until(Pong)
        error = await wire.until(ErrorFrame)
        assert isinstance(error, ErrorFrame)
        assert (error.code, error.field, error.id) == ("bad_request", "max_tokens", "s")
        assert await wire.until(Pong) == Pong(2)


@BINARIES
async def test_an_unknown_frame_is_answered(gateway: GatewayUnderTest, subprotocol: str) -> None:
    """`bad_request` naming `type`: a newer client's frame, a server's frame, a token."""
    newer = FrameBatch(frames=[Frame(), Frame(done=Frame.Done())], delta=["x"])
    async with binary_wire(gateway.url, subprotocol) as wire:
        payload = newer.SerializeToString()
        await wire.connection.send(
            seal(_window_12(payload) if subprotocol.endswith("zstd") else payload)
        )
        for _ in range(3):
            error = await wire.until(ErrorFrame)
            assert isinstance(error, ErrorFrame)
            assert error.field == "type"


async def test_empty_envelopes_disturb_nobody(gateway: GatewayUnderTest) -> None:
    """Length 0 is a batch without frames; a message full of them lets others have their turn."""
    async with (
        binary_wire(gateway.url, BINARY[0]) as wire,
        binary_wire(gateway.url, BINARY[0]) as other,
    ):
        await wire.connection.send(seal(b"") * 10_000)
        await other.send(Ping(1))
        assert await other.until(Pong) == Pong(1)
        await wire.send(Ping(2))
        assert await wire.until(Pong) == Pong(2)


@BINARIES
async def test_a_frame_that_cannot_be_encoded_ends_its_connection_alone(
    gateway: GatewayUnderTest, subprotocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one with a count that no honest instance has: 1011 at once, no silence; others go on."""
    async with (
        binary_wire(gateway.url, subprotocol) as wire,
        binary_wire(gateway.url, subprotocol) as other,
    ):
        monkeypatch.setattr(fake_upstream, "PROMPT_TOKENS", 1 << 70)
        await wire.send(Generate("a", GenerateRequest(prompt="x")))
        assert await wire.close_code() == 1011
        await wait_until(lambda: len(gateway.connections) == 1)
        monkeypatch.undo()
        await other.send(Generate("a", GenerateRequest(prompt="x")))
        assert isinstance(await other.until(Done), Done)


@BINARIES
async def test_goaway_and_1001(gateway: GatewayUnderTest, subprotocol: str) -> None:
    """A drain says goodbye in the connection's own form."""
    async with binary_wire(gateway.url, subprotocol) as wire:
        gateway.stop.set()
        assert isinstance(await wire.until(GoAway), GoAway)
        assert await wire.close_code() == 1001


@BINARIES
async def test_a_refused_query_is_told(gateway: GatewayUnderTest, subprotocol: str) -> None:
    """`bad_request` naming the parameter, then 4400, as in JSON (§8)."""
    offered = [Subprotocol(subprotocol)]
    url = gateway.url + "?mode=free"
    async with connect(url, subprotocols=offered, compression=None, proxy=None) as connection:
        wire = BinaryWire(connection, subprotocol)
        error = await wire.until(ErrorFrame)
        assert isinstance(error, ErrorFrame)
        assert error.field == "mode"
        assert await wire.close_code() == 4400


async def test_the_clients_order_decides(gateway: GatewayUnderTest) -> None:
    """The gateway takes the first that it knows (§1)."""
    offered = [Subprotocol(p) for p in ("seedance.v3.json", BINARY[1], "seedance.v2.json")]
    async with connect(gateway.url, subprotocols=offered, proxy=None) as connection:
        assert connection.subprotocol == BINARY[1]
