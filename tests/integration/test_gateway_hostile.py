"""Clients that mean harm, or are merely broken, on real sockets: others do not notice them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway import http_protocol, ws_protocol
from gateway.http_protocol import HEAD_BYTES_MAX
from gateway.openai import routes
from gateway.websocket import Connection
from gateway.ws_protocol import SocketProtocol
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway, wire
from tests.support.waiting import SURELY_S, wait_until

UPGRADE = (
    b"GET /v2/infer HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
TEXT, PING = 0x81, 0x89
UNREAD_BYTES_MAX = 64 * 1024
FLOOD_BYTES = 4 * 1024 * 1024
# What the loop reads at once is answered as one.
CHUNK_BYTES = 256 * 1024


def _message(payload: bytes, opcode: int = TEXT) -> bytes:
    """A short masked frame (the mask is zero)."""
    return bytes((opcode, 0x80 | len(payload))) + bytes(4) + payload


@asynccontextmanager
async def _stalled(gateway: GatewayUnderTest) -> AsyncIterator[socket.socket]:
    """A simple client's socket that is open and never reads."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", gateway.port))
        sock.sendall(UPGRADE)
        sock.setblocking(False)
        await wait_until(lambda: len(gateway.connections) == 1)
        yield sock


async def _flood(sock: socket.socket, data: bytes, size: int) -> int:
    """Send up to `size` bytes of `data` over and over, for as long as somebody takes them."""
    sent, refused = 0, 0
    while sent < size and refused < 40:
        try:
            sent += sock.send(data[sent % len(data) :])
            refused = 0
        except BlockingIOError:
            refused += 1
        await asyncio.sleep(0.005)
    return sent


def _connections(gateway: GatewayUnderTest) -> list[Connection]:
    carriers = [owner.carrier for owner in gateway.registry.owners]
    return [carrier for carrier in carriers if isinstance(carrier, Connection)]


def _protocol(connection: Connection) -> SocketProtocol:
    assert isinstance(connection._socket, SocketProtocol)
    return connection._socket


def _waiting_bytes(gateway: GatewayUnderTest) -> int:
    """What is written and not taken by the kernel yet, over all connections."""
    protocols = map(_protocol, _connections(gateway))
    return sum(protocol.transport.get_write_buffer_size() for protocol in protocols)


@pytest.mark.parametrize(
    "frame",
    [_message(b'{"type":"x"}'), _message(b'{"type":"ping","t":1}'), _message(b"p" * 100, PING)],
    ids=["bad_request", "ping", "websocket ping"],
)
async def test_who_does_not_read_is_not_heard(
    frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that nobody reads stay bounded, and another client is answered meanwhile."""
    monkeypatch.setattr(ws_protocol, "UNREAD_BYTES_MAX", UNREAD_BYTES_MAX)
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway, _stalled(gateway) as sock:
        flood = asyncio.create_task(_flood(sock, frame * 500, FLOOD_BYTES))
        async with wire(gateway.url) as other:
            while not flood.done():
                began = time.perf_counter()
                await other.send(type="ping", t=1)
                await other.until("pong")
                assert time.perf_counter() - began < 1
                assert _waiting_bytes(gateway) < UNREAD_BYTES_MAX + CHUNK_BYTES
                await asyncio.sleep(0.01)


async def test_a_closed_socket_that_does_not_read_is_cut_off() -> None:
    """Its unread bytes do not keep it: the socket is gone soon after the close frame."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway, _stalled(gateway):
        (connection,) = _connections(gateway)
        protocol = _protocol(connection)
        protocol.close_timeout = 0.1
        protocol.send_text("x" * UNREAD_BYTES_MAX)
        await asyncio.sleep(0)
        protocol.send_close(4408, "session timeout")
        await wait_until(lambda: protocol.disconnected)


async def test_a_handshake_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither silence nor half a request line holds a connection."""
    monkeypatch.setattr(http_protocol, "HEAD_WITHIN_S", 0.1)
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        for begun in (b"", UPGRADE[:40], b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /he"):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(begun)
            async with asyncio.timeout(SURELY_S):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()


async def test_a_head_without_end_is_refused() -> None:
    """HTTP 431 once the head is over its size."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"a" * (HEAD_BYTES_MAX + 1))
        async with asyncio.timeout(SURELY_S):
            assert b" 431 " in await reader.readline()
        writer.close()


async def _said(port: int, *pieces: bytes) -> bytes:
    """What a new connection hears until the gateway ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = b""
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            while more := await reader.read(64 * 1024):
                heard += more
    writer.close()
    return heard


_PADDING = b"".join(
    b"X-%d: %s\r\n" % (at, b"a" * 1_000) for at in range(HEAD_BYTES_MAX // 1_000 + 2)
)


@pytest.mark.parametrize("kind", [b"", b"Upgrade: websocket\r\nConnection: Upgrade\r\n"])
@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_a_long_head_is_refused_that_comes_whole(kind: bytes, before: bytes) -> None:
    """HTTP 431 in one read as in many, for a WebSocket too, and behind another request."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        if before:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(before)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + kind + _PADDING + b"\r\n")
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionResetError):
                    assert b" 431 " in await reader.read()
            writer.close()
        else:
            head = b"GET / HTTP/1.1\r\nHost: x\r\n" + kind + _PADDING + b"\r\n"
            assert b" 431 " in await _said(gateway.port, head)


@pytest.mark.parametrize(
    "hosts",
    [b"", b"Host: a\r\nHost: a\r\n", b"Host: a\r\nHost: b\r\n", b"Host: a b\r\n", b"Host: a/b\r\n"],
)
@pytest.mark.parametrize("kind", [b"", b"Upgrade: websocket\r\nConnection: Upgrade\r\n"])
async def test_a_request_has_one_host(hosts: bytes, kind: bytes) -> None:
    """HTTP/1.1 without `Host`, with two, or with what is none is answered 400 (RFC 9112 §3.2)."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        head = b"GET /healthz HTTP/1.1\r\n" + hosts + kind + b"\r\n"
        assert (await _said(gateway.port, head)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: [::1]:8000\r\nConnection: close\r\n\r\n",
        b"GET http://x/healthz HTTP/1.1\r\nHost: x_y.z\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: \t x \t\r\nConnection: close\r\n\r\n",
    ],
)
async def test_hosts_that_are_right(head: bytes) -> None:
    """HTTP/1.0 needs none (a proxy's health check), and 1.1 takes an empty one and an address."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        assert (await _said(gateway.port, head)).startswith(b"HTTP/1.1 200 ")


async def test_space_around_a_header_is_no_part_of_it() -> None:
    """A key that is followed by a space or a tab, as some proxies write it, is the key (RFC 9110 §5.5)."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        shown = b"Authorization: \t Bearer local \t\r\nConnection: close\r\n\r\n"
        head = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + shown
        assert (await _said(gateway.port, head)).startswith(b"HTTP/1.1 200 ")


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"0\r\n", b"X: a\r\n" * 2_000),
        (b"0\r\nX: ", b"a" * 16_000),
        (b"1;e=", b"a" * 16_000),
        (b"1;e=a\r\nx\r\n" * 2_000,),
    ],
    ids=["trailers", "one trailer", "extension", "small chunks"],
)
async def test_what_stands_around_a_body_has_an_end(
    pieces: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither trailers nor extensions of chunks are taken without bound."""
    monkeypatch.setattr(http_protocol, "FRAMING_BYTES_MAX", 8_000)
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        assert (await _said(gateway.port, CHUNKED, *pieces)).startswith(b"HTTP/1.1 431 ")


async def test_trailers_are_no_headers() -> None:
    """What comes behind the body names nobody (RFC 9110 §6.5.1)."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(CHUNKED)
        await wait_until(lambda: gateway.server.server_state.tasks)
        (protocol,) = gateway.server.server_state.connections
        before = list(protocol.headers)
        writer.write(b"0\r\nAuthorization: Bearer x\r\n\r\n")
        async with asyncio.timeout(5):
            await reader.readline()
        assert protocol.headers == before
        writer.close()


async def test_the_rest_of_an_answered_request_is_not_awaited_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A body that drips on after its answer holds the connection for a moment only."""
    monkeypatch.setattr(http_protocol, "REST_WITHIN_S", 0.2)
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head)
        http = gateway.server.server_state.connections
        await wait_until(lambda: http)

        def dripped() -> bool:
            writer.write(b"x")
            return not http

        await wait_until(dripped)
        assert b" 200 " in await reader.readline()
        writer.close()


async def test_an_answer_that_is_not_taken_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks and never reads holds neither the connection nor what was written for him."""
    monkeypatch.setattr(http_protocol, "TAKEN_WITHIN_S", 0.2)
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", gateway.port))
            sock.setblocking(False)
            http = gateway.server.server_state.connections
            await wait_until(lambda: http)
            (protocol,) = http
            # So much that the kernel does not take it off our hands.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            protocol.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
            )
            await _flood(sock, b"GET /static/app.js HTTP/1.1\r\nHost: x\r\n\r\n" * 500, 100_000)
            await wait_until(protocol.transport.get_write_buffer_size)
            await wait_until(lambda: not http)


async def test_a_silent_simple_client_is_closed_and_the_gateway_lives_on() -> None:
    """A half-open socket ends after its heartbeat; whoever is there is answered as before."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway, _stalled(gateway):
        (connection,) = _connections(gateway)
        connection.on_time(gateway.deps.clock.monotonic() + 31)
        connection.on_time(gateway.deps.clock.monotonic() + 46)
        await wait_until(lambda: len(gateway.connections) == 0)
        async with wire(gateway.url) as other:
            await other.send(type="ping", t=2)
            assert (await other.until("pong"))["t"] == 2


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A promised body that never arrives is answered 408 in OpenAI's shape, in bounded time."""
    monkeypatch.setattr(routes, "BODY_WITHIN_S", 0.1)
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{"
        writer.write(head)
        status = await asyncio.wait_for(reader.readline(), SURELY_S)
        writer.close()
        await writer.wait_closed()
    assert b" 408 " in status


async def test_a_long_upload_is_a_sign_of_life() -> None:
    """A message that comes piece by piece, in one frame or many, counts until it is whole (CASES 41)."""
    content = b'{"type":"ping","t":' + b"1" * 300_000 + b"}"
    plain = bytes((TEXT, 0x80 | 127)) + len(content).to_bytes(8, "big") + bytes(4) + content
    half = len(content) // 2
    first = bytes((0x01, 0x80 | 127)) + half.to_bytes(8, "big") + bytes(4) + content[:half]
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        for begun in (plain[:200_000], first):
            async with _stalled(gateway) as sock:
                (connection,) = _connections(gateway)
                assert connection.piece_at is None
                began = gateway.deps.clock.monotonic()
                await _flood(sock, begun, len(begun))
                await wait_until(lambda c=connection, b=began: (c.piece_at or 0) > b)
            await wait_until(lambda: not len(gateway.connections))


async def test_a_message_in_many_pieces_is_kept_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments of one byte, and of none without end, cost no more than their message (CASES 41)."""
    monkeypatch.setattr(ws_protocol, "FRAGMENTS_MAX", 64)
    content = b'{"type":"ping","t":' + b"1" * 300 + b"}"
    first, more, last = 0x01, 0x00, 0x80
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway, _stalled(gateway) as sock:
        (connection,) = _connections(gateway)
        protocol = _protocol(connection)
        pieces = [_message(bytes((byte,)), more) for byte in content[1:-1]]
        pieces[10:10] = [_message(b"", more)] * 500
        begun = _message(content[:1], first) + b"".join(pieces)
        most = 0

        def came() -> bool:
            nonlocal most
            most = max(most, len(protocol.frames))
            return sum(map(len, protocol.frames)) == len(content) - 1

        flood = asyncio.create_task(_flood(sock, begun, len(begun)))
        await wait_until(came)
        await flood
        assert most <= ws_protocol.FRAGMENTS_MAX
        before = protocol.bytes_out
        await _flood(sock, _message(content[-1:], last), 7)
        await wait_until(lambda: protocol.bytes_out > before)


async def test_whole_messages_leave_no_piece() -> None:
    """What has arrived in full is no upload that goes on."""
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway, wire(gateway.url) as client:
        (connection,) = _connections(gateway)
        for number in range(3):
            await client.send(type="ping", t=number)
            await client.until("pong")
        assert connection.piece_at is None


async def test_who_leaves_behind_a_second_request_is_noticed_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A request that waits behind another on its connection does not hide that the client has gone (CASES 26)."""
    cluster = FakeCluster(auto=False)
    async with running_gateway(FakeUpstream(cluster)) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        body = b'{"prompt":"p","stream":true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write((head + body) * 2)
        await wait_until(lambda: cluster.running)
        writer.transport.abort()
        http = gateway.server.server_state.connections
        await wait_until(lambda: not http)
        await asyncio.sleep(0)  # whoever was told has its turn
        computed = cluster.computed
        cluster.step()
        assert (cluster.running, cluster.computed) == (0, computed)
    assert not caplog.records
