"""Who has how many connections, with and without a proxy in front."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway, wire
from tests.support.waiting import SURELY_S, wait_until

ONE, OTHER = ({"X-Forwarded-For": address} for address in ("192.0.2.1", "192.0.2.2"))


async def _is_refused(gateway: GatewayUnderTest, headers: dict[str, str] | None = None) -> bool:
    """Whether one more WebSocket is closed with 4429 at once."""
    async with wire(gateway.url, greeting=False, additional_headers=headers or {}) as client:
        if client.connection.close_code is None:
            with contextlib.suppress(Exception):
                if (await client.read())["type"] == "session":
                    return False
        return await client.closed() == 4429


async def test_an_address_has_its_number_of_websockets() -> None:
    """One more than `connections_per_address` is closed with 4429; when one leaves, there is room."""
    async with running_gateway(FakeUpstream(FakeCluster()), connections_per_address=2) as gateway:
        async with wire(gateway.url), wire(gateway.url):
            assert await _is_refused(gateway)
        await wait_until(lambda: not len(gateway.connections))
        assert not await _is_refused(gateway)


async def test_behind_a_proxy_the_clients_address_counts() -> None:
    """A trusted proxy's `X-Forwarded-For` names the client; one client's number is no other's."""
    settings = {"connections_per_address": 1, "trusted_proxies": "127.0.0.0/8"}
    async with (
        running_gateway(FakeUpstream(FakeCluster()), **settings) as gateway,
        wire(gateway.url, additional_headers=ONE),
    ):
        assert await _is_refused(gateway, ONE)
        assert not await _is_refused(gateway, OTHER)
        # What a client wrote into the header itself stands before what the proxy added to it.
        forged = {"X-Forwarded-For": "203.0.113.9, 192.0.2.1"}
        assert await _is_refused(gateway, forged)


@pytest.mark.parametrize("trusted", ["", "192.0.2.77"])
async def test_a_stranger_cannot_choose_his_address(trusted: str) -> None:
    """Whoever is no trusted proxy is counted by where he comes from, whatever he writes."""
    settings = {"connections_per_address": 1, "trusted_proxies": trusted}
    async with (
        running_gateway(FakeUpstream(FakeCluster()), **settings) as gateway,
        wire(gateway.url, additional_headers=ONE),
    ):
        assert await _is_refused(gateway, OTHER)


async def test_connections_that_ask_nothing_are_counted_too() -> None:
    """Silent connections of one address end at its number: 429 at once, and room when they leave."""
    async with running_gateway(FakeUpstream(FakeCluster()), connections_per_address=3) as gateway:
        held = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(3)]
        await wait_until(lambda: len(_http(gateway)) == 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        async with asyncio.timeout(SURELY_S):
            assert b" 429 " in await reader.readline()
        for _, each in [*held, (reader, writer)]:
            each.close()
        await wait_until(lambda: not _http(gateway))
        # A WebSocket is counted as one, and no longer as a connection that has asked nothing.
        async with wire(gateway.url), wire(gateway.url), wire(gateway.url):
            assert len(gateway.connections) == 3
            assert await _is_refused(gateway)


@pytest.mark.parametrize("path", [b"/v2/infer?token=x", b"/v2/infer"], ids=["4401", "4429"])
async def test_who_was_turned_away_does_not_stay(
    path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused socket whose client neither answers nor leaves is closed soon: it holds no place for free."""
    monkeypatch.setattr("gateway.websocket.TURNED_AWAY_S", 0.1)
    head = b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    head += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    async with (
        running_gateway(FakeUpstream(FakeCluster()), connections_max=1) as gateway,
        wire(gateway.url),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head)
        async with asyncio.timeout(SURELY_S):
            assert b" 101 " in await reader.read()
        writer.close()


def _http(gateway: GatewayUnderTest) -> set[object]:
    return gateway.server.server_state.connections
