"""OpenAI's API over real sockets: its official client, clients that go away, and the bill."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis.asyncio

from gateway import server
from gateway.store.redis import RedisStore
from mesh.clock import SystemClock
from mesh.rpc.server import RpcServer
from mesh.store import Partitions
from metering.service import MeteringService
from seedance.protocol.request import GenerateRequest
from seedance.v2 import metering_pb2_grpc
from tests.support.billing_desk import open_desk
from tests.support.fake_upstream import MODEL, FakeCluster, FakeUpstream
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway
from tests.support.told_usage import stream_bills
from tests.support.usage_events import usage_payload
from tests.support.valkey import TestStore
from tests.support.waiting import SURELY_S, wait_until

HELLO: Any = [{"role": "user", "content": "one two three 😁"}]


@contextlib.asynccontextmanager
async def official_client(cluster: FakeCluster) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client with a tenant's key, and a gateway that knows the key."""
    keys = "acme:" + hashlib.sha256(b"sk-acme").hexdigest()
    async with (
        running_gateway(FakeUpstream(cluster), keys=keys) as gateway,
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="sk-acme", max_retries=0
        ) as client,
    ):
        yield client


async def test_official_client() -> None:
    """OpenAI's own client reads every answer: whole, streamed, log-probabilities, models, errors."""
    async with official_client(FakeCluster()) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        whole = await client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True)
        assert whole.choices[0].message.content == HELLO[0]["content"]
        assert whole.choices[0].finish_reason == "stop"
        assert whole.choices[0].logprobs is not None
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 4
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == HELLO[0]["content"]
        assert chunks[-1].usage == whole.usage
        older = await client.completions.create(model=MODEL, prompt="a b", logprobs=1)
        assert older.choices[0].text == "a b"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model=MODEL, messages=HELLO, n=9)
        assert refused.value.param == "n"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt-9", messages=HELLO)


def _by_choice(request: GenerateRequest) -> list[bytes]:
    return [f"{request.sampling.choice}:{n} ".encode() for n in range(5 + request.sampling.choice)]


async def test_official_client_asks_for_several_choices() -> None:
    """CASES 90: each by its index, streamed or not; the prompt is counted once, the answers all."""
    async with official_client(FakeCluster(_by_choice)) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=HELLO, n=3)
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, n=3, stream=True, stream_options={"include_usage": True}
        )
        texts, reasons, usage = ["", "", ""], ["", "", ""], None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] += choice.finish_reason or ""
        expected = ["".join(f"{c}:{n} " for n in range(5 + c)) for c in range(3)]
        assert texts == [choice.message.content for choice in whole.choices] == expected
        assert [choice.index for choice in whole.choices] == [0, 1, 2]
        assert reasons == ["stop"] * 3
        assert whole.usage is not None
        assert usage == whole.usage
        single = await client.chat.completions.create(model=MODEL, messages=HELLO)
        assert single.usage is not None
        assert whole.usage.prompt_tokens == single.usage.prompt_tokens
        assert whole.usage.completion_tokens == 5 + 6 + 7
        older = await client.completions.create(model=MODEL, prompt="a b", n=2, logprobs=1)
        assert [choice.index for choice in older.choices] == [0, 1]
        assert all(choice.logprobs is not None for choice in older.choices)


async def test_official_client_and_a_failing_stream() -> None:
    """CASES 67: OpenAI's client raises when a stream fails, and never takes it for complete."""
    cluster = FakeCluster(lambda _: [b"x"] * 100_000)
    async with official_client(cluster) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        await anext(stream)
        for held in cluster.instances["i-0"].generations.values():
            held.cancelled = True
        with pytest.raises(openai.APIError):
            await _read_on(stream)


async def _read_on(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


async def _ask(gateway: GatewayUnderTest, *, stream: bool, key: str = "") -> socket.socket:
    """A bare client that has sent its request."""
    body = json.dumps({"messages": HELLO, "stream": stream, "ignore_eos": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    head += f"Idempotency-Key: {key}\r\n\r\n" if key else "\r\n"
    sock = socket.socket()
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", gateway.port))
    await loop.sock_sendall(sock, head.encode() + body)
    return sock


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", [_reset, socket.socket.close], ids=["RST", "FIN"])
async def test_client_that_goes_away(stream: bool, leave: Any) -> None:
    """CASES 26, 31: a client that goes away cancels its generation, and what was framed is billed."""
    cluster = FakeCluster(lambda _: [b"x"] * 100_000, auto=False)
    async with running_gateway(FakeUpstream(cluster)) as gateway:
        sock = await _ask(gateway, stream=stream)
        await wait_until(lambda: cluster.running == 1)
        for _ in range(10):
            cluster.step()
        if stream:
            async with asyncio.timeout(SURELY_S):
                await asyncio.get_running_loop().sock_recv(sock, 4096)
        leave(sock)
        (held,) = cluster.instances["i-0"].generations.values()
        await wait_until(lambda: held.cancelled)
        cluster.step()
        usage = gateway.deps.store.usage  # type: ignore[attr-defined]
        await wait_until(lambda: stream_bills(usage))
        assert cluster.running == 0
        (bill,) = stream_bills(usage)
        assert (bill["finish_reason"], bill["prompt_tokens"]) == ("cancelled", 7)
        # Framed is what was sent, whatever of it arrived; nothing was computed after the end.
        assert cluster.computed == 10
        assert 1 <= bill["completion_tokens"] <= 10 if stream else bill["completion_tokens"] == 0


async def test_a_retry_at_another_gateway(valkey: TestStore) -> None:
    """CASES 63, 65: a client whose line broke asks again elsewhere under its key: the whole answer, once."""
    cluster = FakeCluster(lambda _: [b"~"] * 50, auto=False)
    stores = [RedisStore(valkey.url, SystemClock(), 120, settle_s=0) for _ in range(2)]
    async with (
        running_gateway(FakeUpstream(cluster), stores[0]) as one,
        running_gateway(FakeUpstream(cluster), stores[1]) as other,
    ):
        broken = await _ask(one, stream=True, key="k1")
        await wait_until(lambda: cluster.running == 1)
        cluster.step()
        _reset(broken)
        again = await _ask(other, stream=True, key="k1")
        await wait_until(lambda: not cluster.step())
        answer = b""
        async with asyncio.timeout(SURELY_S):
            while b"[DONE]" not in answer:
                answer += await asyncio.get_running_loop().sock_recv(again, 65536)
        again.close()
        assert answer.count(b"~") == 50
        assert b"idempotent-replayed: true" in answer
    for store in stores:
        await store.close()
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        events = await client.xrange(Partitions().usage_stream(0))
    read = [json.loads(fields[b"payload"]) for _, fields in events]
    (bill,) = (event for event in read if event["kind"] == "stream_finished")
    assert (bill["finish_reason"], bill["completion_tokens"]) == ("stop", 50)


async def test_a_drain_lets_an_answer_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 112: SSE resumes nowhere, so what runs has the grace time; then the process ends."""
    monkeypatch.setattr(server, "HTTP_GRACE_S", 0)
    cluster = FakeCluster(lambda _: [b"x"] * 10, auto=False)
    async with running_gateway(FakeUpstream(cluster), drain_grace_s=10) as gateway:
        sock = await _ask(gateway, stream=True)
        await wait_until(lambda: cluster.running == 1)
        cluster.step()
        gateway.stop.set()
        done, _ = await asyncio.wait([gateway.serving], timeout=0.5)
        assert not done
        while cluster.step():
            pass
        async with asyncio.timeout(SURELY_S):
            await gateway.serving
            answer = b""
            while part := await asyncio.get_running_loop().sock_recv(sock, 4096):
                answer += part
        sock.close()
        assert b"[DONE]" in answer
        await gateway.deps.usage.flush()
        usage = gateway.deps.store.usage  # type: ignore[attr-defined]
        (bill,) = stream_bills(usage)
        assert (bill["finish_reason"], bill["completion_tokens"]) == ("stop", 10)


async def test_usage_through_metering(tmp_path: Path) -> None:
    """`GET /v1/usage` is the tenant's own ledger sums; with metering away it is a 503."""
    desk = open_desk(tmp_path)
    ledger = desk.ledger
    await ledger.record([usage_payload("1", tenant="local"), usage_payload("2", tenant="other")])
    rpc = RpcServer(["seedance.v2.Metering"], None, "s3cret")
    metering_pb2_grpc.add_MeteringServicer_to_server(  # type: ignore[no-untyped-call]
        MeteringService(ledger, desk), rpc.server
    )
    port = await rpc.start("127.0.0.1:0")
    settings = {"metering": f"127.0.0.1:{port}", "mesh_secret": "s3cret"}
    async with (
        running_gateway(FakeUpstream(FakeCluster()), **settings) as gateway,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}") as client,
    ):
        body = (await client.get("/v1/usage")).json()
        sums = {
            "requests": 1,
            "prompt_tokens": 7,
            "cached_tokens": 2,
            "completion_tokens": 5,
            "total_tokens": 12,
        }
        assert body == {
            "object": "usage",
            "tenant": "local",
            "total": sums,
            "models": [{"model": "smol"} | sums],
        }
        minutely = await client.get("/v1/usage?per=minute&from_ms=0&until_ms=60000")
        assert minutely.json()["minutes"] == [{"minute_ms": 0, "model": "smol"} | sums]
        assert (await client.get("/v1/usage?per=minute")).json()["minutes"] == []
        for wrong in ("per=hour", "per=minute&from_ms=1&until_ms=86400002"):
            assert (await client.get(f"/v1/usage?{wrong}")).status_code == 400
        empty = (await client.get("/v1/usage?from_ms=5000")).json()
        assert empty["total"]["requests"] == 0
        bad = await client.get("/v1/usage?from_ms=5000&until_ms=1")
        assert bad.status_code == 400
        await rpc.drain(0)
        away = await client.get("/v1/usage")
        assert (away.status_code, away.json()["error"]["code"]) == (503, "unavailable")
    ledger.close()
