"""The WebSocket endpoint with real sockets (§1–§3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from seedance.protocol.delivery import LinkState
from seedance.protocol.request import GenerateRequest
from tests.support.fake_upstream import FakeCluster, FakeUpstream, tokens_of
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway, wire
from tests.support.told_usage import stream_bills
from tests.support.waiting import SURELY_S, wait_until


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def gateway(cluster: FakeCluster) -> AsyncIterator[GatewayUnderTest]:
    async with running_gateway(FakeUpstream(cluster)) as running:
        yield running


@pytest.mark.parametrize("path", ["/v2/infer", "/v1/chat"])
async def test_plain_browser_code_works(gateway: GatewayUnderTest, path: str) -> None:
    """Open, send an object with `messages`, read `delta`: no SDK, no subprotocol, no `type`."""
    url = f"ws://127.0.0.1:{gateway.port}{path}?mode=concurrent&instance=high-perf"
    async with wire(url, windowed=False) as client:
        assert client.connection.subprotocol is None
        assert client.seen[0]["mode"] == "concurrent"
        await client.send(stream=True, messages=[{"role": "user", "content": "one two"}])
        await client.until("done")
        text = "".join(frame.get("delta", "") for frame in client.seen)
        assert text == "one two"


async def test_the_session_frame_says_what_a_client_needs(gateway: GatewayUnderTest) -> None:
    """Every field of the contract's table is there."""
    async with wire(gateway.url) as client:
        assert client.connection.subprotocol == "seedance.v2.json"
        hello = client.seen[0]
        assert {*hello} == {
            *("type", "session", "token", "epoch", "tenant", "heartbeat", "window", "resume_ttl"),
            *("mode", "server", "gateways"),
        }
        assert hello["heartbeat"] == {"connection": 30, "session": 15, "stream": 8}
        assert hello["window"] == {"initial": 32, "min": 16, "max": 128}
        assert len(hello["token"]) >= 43, "256 random bits"


async def test_many_streams_share_a_session(gateway: GatewayUnderTest) -> None:
    """Each is whole, and numbers rise by one across all of them."""
    async with wire(gateway.url) as client:
        for number in range(20):
            await client.send(type="generate", id=f"s{number}", prompt=f"{number} " * 9)
        while sum(f["type"] == "done" for f in client.seen) < 20:
            await client.read()
            await client.send(type="ack", seq=client.last_seq + 1)
        for number in range(20):
            assert client.text(f"s{number}") == f"{number} " * 9
        seqs = [f["seq"] for f in client.seen if "seq" in f]
        assert seqs == list(range(1, len(seqs) + 1))


BAD_FRAMES: list[tuple[Any, str | None]] = [
    ({"type": "what"}, "type"),
    ({}, "type"),
    ({"type": "ack"}, "seq"),
    ({"type": "ack", "seq": -1}, "seq"),
    ({"type": "ack", "seq": 2**70}, "seq"),
    ({"type": "ack", "seq": 99}, "seq"),
    ({"type": "generate", "prompt": 7}, "prompt"),
    ({"type": "generate", "prompt": "\ud83d"}, "prompt"),
    ({"type": "generate", "messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"type": "generate", "prompt": "x", "temperature": 9}, "temperature"),
    ({"type": "resume", "session": "s", "token": "t", "last_seq": 0, "offsets": {}}, "type"),
]


async def test_bad_frames_keep_the_session(gateway: GatewayUnderTest) -> None:
    """Each is answered by an `error` that names the field, and a good one still works (§3)."""
    async with wire(gateway.url) as client:
        await client.send(type="ping", t=1)
        for frame, field in BAD_FRAMES:
            await client.connection.send(json.dumps(frame))
            error = await client.until("error")
            assert (error["code"], error["retryable"]) == ("bad_request", False)
            assert field is None or f"`{field}`" in error["message"]
        await client.connection.send('{"type":"generate","id":"n","prompt":"x","top_p":NaN}')
        assert (await client.until("error"))["id"] == "n"
        await client.send(type="generate", id="good", prompt="still works")
        await client.until("done", id="good")
        assert client.text("good") == "still works"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("not json", 4400),
        ("[]", 4400),
        (b"\x00\x01", 1003),
        ('{"type":"ping","t":"' + "x" * 1_048_576 + '"}', 1009),
        ("x" * 5_000_000, 1009),
    ],
    ids=["text", "array", "binary", "just too big", "5 MB"],
)
async def test_close_codes(gateway: GatewayUnderTest, message: str | bytes, code: int) -> None:
    """What is no message of the contract closes with its own code (CASES 22, 39)."""
    async with wire(gateway.url) as client:
        await client.connection.send(message)
        assert await client.closed() == code


async def test_invalid_utf8_closes_with_1007(gateway: GatewayUnderTest) -> None:
    """A text message is UTF-8 (§3, CASES 22)."""
    async with wire(gateway.url) as client:
        await client.connection.send(b'{"type":"ping","t":"\xff"}', text=True)
        assert await client.closed() == 1007


async def test_a_message_of_almost_1_mib_is_taken(gateway: GatewayUnderTest) -> None:
    """The limit is the contract's, not the server's default (§1)."""
    async with wire(gateway.url) as client:
        await client.send(type="ping", t=1, ignored="x" * (1_048_576 - 100))
        assert (await client.until("pong"))["t"] == 1


@pytest.mark.parametrize(
    "query", ["mode=free", "canary=1", "instance=", "instance=a%20b", "instance=" + "x" * 65]
)
async def test_bad_query_parameters_are_named(gateway: GatewayUnderTest, query: str) -> None:
    """An `error` frame that names the parameter, then 4400."""
    async with wire(f"{gateway.url}?{query}", greeting=False) as client:
        assert await client.closed() == 4400
        [error] = client.seen
        assert error["code"] == "bad_request"
        assert f"`{query.partition('=')[0]}`" in error["message"]


async def test_who_may_connect(gateway: GatewayUnderTest) -> None:
    """A bad `Origin` is 403, a wrong key 401, a key in the URL 4401 (CASES 25, 108, 109)."""
    for headers, status in (
        ({"Origin": "https://evil.example"}, 403),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
    ):
        with pytest.raises(InvalidStatus) as refused:
            async with wire(gateway.url, additional_headers=headers):
                pass
        assert refused.value.response.status_code == status
    async with wire(f"{gateway.url}?token=sk-XYZ", greeting=False) as client:
        assert await client.closed() == 4401


async def test_one_connection_too_many(cluster: FakeCluster) -> None:
    """4429: come back later."""
    async with (
        running_gateway(FakeUpstream(cluster), connections_max=1) as gateway,
        wire(gateway.url),
        wire(gateway.url, greeting=False) as second,
    ):
        assert await second.closed() == 4429


async def test_deflate_is_not_negotiated(gateway: GatewayUnderTest) -> None:
    """It costs memory per connection and opens the way to zip bombs (CASES 42)."""
    async with connect(gateway.url, compression="deflate", proxy=None) as connection:
        assert connection.protocol.extensions == []


async def test_close_ends_the_session(gateway: GatewayUnderTest, cluster: FakeCluster) -> None:
    """1000, and nothing of it is left anywhere."""
    async with wire(gateway.url) as client:
        await client.send(type="generate", id="a", prompt="x " * 500)
        await client.until("token")
        await client.send(type="close")
        assert await client.closed() == 1000
    await wait_until(lambda: not len(gateway.registry) and not cluster.running)


async def test_a_lost_connection_frees_a_simple_clients_stream(
    gateway: GatewayUnderTest, cluster: FakeCluster
) -> None:
    """By FIN and by RST alike; a bill is written (CASES 26, 31)."""
    for abort in (False, True):
        async with wire(gateway.url, windowed=False) as client:
            await client.send(prompt="x " * 100_000)
            await client.until("token")
            if abort:
                client.connection.transport.abort()
        await wait_until(lambda: not cluster.running)
    await wait_until(lambda: len(stream_bills(gateway.deps.store.usage)) == 2)  # type: ignore[attr-defined]


async def test_a_reader_that_stops_pauses_the_engine() -> None:
    """Its stream waits at the engine, in bounded memory, and nobody else is slowed (CASES 43)."""
    text = ("y" * 200 + " ") * 20_000

    def script(request: GenerateRequest) -> list[bytes]:
        return [b"y" * 200 + b" "] * 20_000 if request.prompt == "long" else tokens_of(request)

    cluster = FakeCluster(script)
    async with (
        running_gateway(FakeUpstream(cluster)) as gateway,
        wire(gateway.url, windowed=False, max_queue=1) as slow,
        wire(gateway.url) as quick,
    ):
        await slow.send(prompt="long")
        await wait_until(
            lambda: any(o.machine.delivery.link is LinkState.FULL for o in gateway.registry.owners)
        )
        await quick.send(type="generate", id="q", prompt="hello there")
        await quick.until("done")
        assert cluster.computed < 15_000
        await slow.until("done")
        assert slow.text() == text


async def test_health_readiness_and_metrics(
    gateway: GatewayUnderTest, cluster: FakeCluster
) -> None:
    """Alive is not the same as able to serve."""
    base = f"http://127.0.0.1:{gateway.port}"
    async with httpx.AsyncClient(base_url=base, trust_env=False) as http, wire(gateway.url):
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200
        metrics = (await http.get("/metrics")).text
        assert "seedance_gateway_connections 1.0" in metrics
        for instance in cluster.instances.values():
            instance.alive = False
        unready = await http.get("/readyz")
        assert unready.status_code == 503
        assert "Retry-After" in unready.headers


async def test_draining_parts_in_good_order(cluster: FakeCluster) -> None:
    """`goaway`, a simple client's stream to its end, then 1001, and the process is free to end (CASES 112)."""
    cluster.auto = False
    async with running_gateway(FakeUpstream(cluster), drain_grace_s=10) as gateway:
        async with (
            wire(gateway.url) as idle,
            wire(gateway.url) as windowed,
            wire(gateway.url, windowed=False) as simple,
        ):
            await windowed.send(type="generate", id="w", prompt="a b c d")
            await simple.send(prompt="one two three")
            await wait_until(lambda: len(cluster.instances["i-0"].generations) == 2)
            gateway.stop.set()
            for client in (idle, windowed, simple):
                assert (await client.until("goaway"))["reconnect_ms"] >= 0
            assert await idle.closed() == 1001
            assert await windowed.closed() == 1001
            await wait_until(lambda: not cluster.step() and not cluster.running)
            assert await simple.closed() == 1001
            assert simple.text() == "one two three"
            assert simple.seen[-1]["type"] == "done"
        async with asyncio.timeout(SURELY_S):
            await gateway.serving
