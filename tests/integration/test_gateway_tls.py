"""TLS at the gateway over real sockets: the SDK, a plain client, a certificate that changes, a slow one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from gateway import server, tls_listener
from gateway.tls import open_certificate
from seedance import AsyncSeedanceClient, SeedanceError
from seedance.protocol.reconnect import Backoff
from tests.support.certificates import Authority
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway, wire
from tests.support.instance import eventually
from tests.support.scripts import script_messages
from tests.support.waiting import SURELY_S, wait_until
from tests.support.whole_path import whole_path


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _settings(authority: Authority, name: str = "gateway") -> dict[str, str]:
    pair = authority.issue(name)
    return {"tls_cert": pair.certificate, "tls_key": pair.key}


def _der(file: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(file).read_text())


async def _certificate_of(gateway: GatewayUnderTest, tls: ssl.SSLContext) -> bytes:
    """What a new connection is shown, DER."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=tls)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return shown


async def test_the_sdk_streams_over_tls(authority: Authority) -> None:
    """`wss://` with the authority's file: the whole text; the session names `wss://` gateways."""
    async with whole_path(**_settings(authority)) as path:
        url = path.gateway.url
        assert url.startswith("wss://")
        async with AsyncSeedanceClient(url, ca_cert=authority.file) as client:
            words = ["wörd ".encode()] * 2_000
            done = await client.chat(messages=script_messages(words), stream=False)
        assert done.text == "wörd " * 2_000
        tls = ssl.create_default_context(cafile=authority.file)
        async with wire(url, greeting=False, ssl=tls) as raw:
            assert (await raw.read())["gateways"] == [url.removesuffix("/v2/infer")]
        async with httpx.AsyncClient(verify=tls) as http:
            ready = await http.get(f"https://127.0.0.1:{path.gateway.port}/readyz")
        assert ready.json() == {"status": "ready"}


async def test_a_gateway_that_nobody_vouches_for_is_not_spoken_to(authority: Authority) -> None:
    """Without the authority the SDK sends no key: the connection fails before any of it."""
    async with running_gateway(FakeUpstream(FakeCluster()), **_settings(authority)) as gateway:
        client = AsyncSeedanceClient(gateway.url, api_key="secret", backoff=Backoff(tries_max=1))
        async with client:
            with pytest.raises((SeedanceError, OSError)):
                await client.chat(prompt="x", stream=False)
        assert len(gateway.connections) == 0


async def test_a_certificate_changes_under_open_connections(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections see the new certificate; one that was open goes on undisturbed."""
    monkeypatch.setattr("gateway.tls.LOOK_EVERY_S", 0.02)
    settings, second = _settings(authority), authority.issue("second")
    tls = ssl.create_default_context(cafile=authority.file)
    expected = _der(second.certificate)

    async def renewed() -> bool:
        return await _certificate_of(gateway, tls) == expected

    async with (
        running_gateway(FakeUpstream(FakeCluster()), **settings) as gateway,
        wire(gateway.url, ssl=tls) as client,
    ):
        assert not await renewed()
        shutil.copyfile(second.certificate, settings["tls_cert"])
        shutil.copyfile(second.key, settings["tls_key"])
        await eventually(renewed)
        await client.send(type="ping", t=1)
        assert (await client.until("pong"))["t"] == 1


def test_a_handshake_of_tls_that_does_not_come_is_given_up(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither silence nor plain text at the TLS port holds a connection, on the loop that serves."""
    monkeypatch.setattr(server, "HEAD_WITHIN_S", 0.2)

    async def play() -> None:
        settings = _settings(authority)
        async with running_gateway(FakeUpstream(FakeCluster()), **settings) as gateway:
            for begun in (b"", b"\x16\x03\x01", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                writer.write(begun)
                async with asyncio.timeout(SURELY_S):
                    assert b"HTTP/1.1" not in await reader.read()
                writer.close()

    uvloop.run(play())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_slow_reader_pauses_its_streams_over_tls_too(run, authority: Authority) -> None:
    """Who does not read fills bounded buffers, and what was written for him waits no further in."""

    async def play() -> None:
        settings = _settings(authority)
        async with running_gateway(FakeUpstream(FakeCluster()), **settings) as gateway:
            tls = ssl.create_default_context(cafile=authority.file)
            raw = socket.create_connection(("127.0.0.1", gateway.port))
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            async with wire(gateway.url, sock=raw, ssl=tls, server_hostname="127.0.0.1") as client:
                (owner,) = gateway.registry.owners
                socket_ = owner.carrier._socket
                seen: list[bool] = []
                socket_.on_writable = seen.append
                client.connection.transport.pause_reading()

                def full() -> bool:
                    socket_.send_text("x" * 16_384)
                    return False in seen

                await wait_until(full)
                assert not socket_.idle
                client.connection.transport.resume_reading()
                await wait_until(lambda: seen[-1:] == [True])
                client.connection.transport.abort()

    run(play())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("bound", ["HANDSHAKES_PER_ADDRESS_MAX", "HANDSHAKES_MAX"])
def test_handshakes_that_do_not_come_are_so_many(
    run, bound: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more, of an address or of all, is cut off at once; when one leaves there is room, and who is in stays."""
    monkeypatch.setattr(tls_listener, bound, 3)

    async def play() -> None:
        settings = _settings(authority)
        tls = ssl.create_default_context(cafile=authority.file)
        async with running_gateway(FakeUpstream(FakeCluster()), **settings) as gateway:
            async with wire(gateway.url, ssl=tls) as client:
                listener = gateway.server.servers[0]
                assert not len(listener), "a handshake that is through counts no more"
                silent = [
                    await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(3)
                ]
                await wait_until(lambda: len(listener) == 3)
                with pytest.raises((OSError, ssl.SSLError)):
                    await _certificate_of(gateway, tls)
                await client.send(type="ping", t=1)
                assert (await client.until("pong"))["t"] == 1
                for _, writer in silent[1:]:
                    writer.close()
                await wait_until(lambda: len(listener) == 1)
                assert await _certificate_of(gateway, tls)
            silent[0][1].close()

    run(play())


async def test_a_proxys_handshakes_count_in_the_sum_alone(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edge that speaks TLS to the gateways brings everybody's connections."""
    monkeypatch.setattr(tls_listener, "HANDSHAKES_PER_ADDRESS_MAX", 1)
    settings = {**_settings(authority), "trusted_proxies": "127.0.0.1"}
    async with running_gateway(FakeUpstream(FakeCluster()), **settings) as gateway:
        silent = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(3)]
        await wait_until(lambda: len(next(iter(gateway.server.servers), ())) == 3)
        for _, writer in silent:
            writer.close()


async def test_what_comes_with_the_end_of_the_handshake_is_not_lost(authority: Authority) -> None:
    """A request in the same packet, and a client that has said all with it, are answered."""
    tls = ssl.create_default_context(cafile=authority.file)
    async with running_gateway(FakeUpstream(FakeCluster()), **_settings(authority)) as gateway:
        read, write = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = tls.wrap_bio(read, write, server_hostname="127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(write.read())
                read.write(await reader.read(65_536))
        client.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        writer.write(write.read())
        async with asyncio.timeout(SURELY_S):
            read.write(await reader.read())
        answer = b""
        with contextlib.suppress(ssl.SSLError):
            while piece := client.read():
                answer += piece
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200")


class _Exhausted(socket.socket):
    """A listening socket of a process that has no file descriptor left, once."""

    left = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.left:
            self.left = 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_process_without_descriptors_lets_in_later(
    run, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither ends nor turns in circles: who waits in the backlog is let in when there is room."""
    monkeypatch.setattr(tls_listener, "EXHAUSTED_S", 0.05)
    pair = authority.issue("gateway")

    async def play() -> None:
        certificate = open_certificate(pair.certificate, pair.key)
        listener = tls_listener.TlsListener(certificate.context, asyncio.Protocol, 5.0)
        with _Exhausted() as sock:
            sock.bind(("127.0.0.1", 0))
            listener.listen(sock, 8)
            tls = ssl.create_default_context(cafile=authority.file)
            async with asyncio.timeout(SURELY_S):
                _, writer = await asyncio.open_connection(*sock.getsockname(), ssl=tls)
            writer.close()
            assert sock.left
            listener.close()

    run(play())
