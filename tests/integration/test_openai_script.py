"""OpenAI's API on real instances that play scripts, over real gRPC and real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from gateway.upstream.membership import StaticList
from gateway.upstream.pool import InstancePool
from mesh.clock import SystemClock
from mesh.rpc.channel import open_channel
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc
from tests.support.gateway_under_test import GatewayUnderTest, running_gateway
from tests.support.scripts import script, script_messages
from tests.support.service_process import ServiceProcess, running_service
from tests.support.told_usage import stream_bills
from tests.support.waiting import wait_until

SECRET = "of-this-test"  # noqa: S105
CONTEXT = 4096
CHAT = "/v1/chat/completions"


def _instance(name: str) -> contextlib.AbstractAsyncContextManager[ServiceProcess]:
    flags = ("--engine", "script", "--instance-id", name, "--context-length", str(CONTEXT))
    return running_service("inference", *flags, env={"SEEDANCE_MESH_SECRET": SECRET})


@contextlib.asynccontextmanager
async def _gateway(*addresses: str) -> AsyncIterator[tuple[GatewayUnderTest, httpx.AsyncClient]]:
    pool = InstancePool(StaticList(addresses), SystemClock(), mesh_secret=SECRET)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(pool.run())
        await wait_until(pool.ready)
        async with (
            running_gateway(pool) as gateway,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}") as client,
        ):
            yield gateway, client
        running.cancel()


async def _streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, str, Any]:
    """Text, finish reason and usage of a streamed answer."""
    text, reason, usage = "", "", None
    ask = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", CHAT, json=ask) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage", usage)
            for choice in chunk["choices"]:
                text += choice["delta"].get("content", "")
                reason = choice["finish_reason"] or reason
    return text, reason, usage


# (CASES row, tokens, stop, max_tokens; text, reason, tokens billed)
# Tokens whose text is (part of) the stop string were never framed: free.
TEXTS: list[tuple[str, Sequence[bytes], Any, int | None, str, str, int]] = [
    ("01", [b"\xf0\x9f", b"\x98\x81"], None, None, "😁", "stop", 2),
    ("02", [b"a", b"\xf0\x9f"], None, 2, "a\ufffd", "stop", 2),
    ("02", [b"\xff", b"b"], None, None, "\ufffdb", "stop", 2),
    (
        "06",
        [b"The quick br", b"own", b" fox", b" jumps"],
        ["own fox"],
        None,
        "The quick br",
        "stop",
        1,
    ),
    ("12", [b"abc", b".d"], ["."], None, "abc", "stop", 1),
    ("12", [b"a\nb"], "\n", None, "a", "stop", 1),
]


async def test_both_ways_say_the_same() -> None:
    """CASES 01, 02, 06, 07, 12, 85, 90: streamed and whole have one text, one reason, one usage."""
    async with _instance("i0") as instance, _gateway(instance.address) as (_, client):
        for row, tokens, stop, max_tokens, text, reason, billed in TEXTS:
            body = {"messages": script_messages(tokens), "stop": stop, "max_tokens": max_tokens}
            whole = (await client.post(CHAT, json=body)).json()
            choice = whole["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason), row
            streamed = await _streamed(client, body)
            assert streamed[:2] == (text, reason), row
            usage = whole["usage"]
            # The second asking finds the first one's prompt in the cache.
            again = streamed[2]
            cached = again.pop("prompt_tokens_details")["cached_tokens"]
            assert usage.pop("prompt_tokens_details")["cached_tokens"] == 0, row
            assert cached <= usage["prompt_tokens"], row
            assert again == usage, row
            assert usage["completion_tokens"] == billed, row
            assert usage["total_tokens"] == usage["prompt_tokens"] + billed, row
            older = await client.post(
                "/v1/completions",
                json={"prompt": script(tokens), "stop": stop, "max_tokens": max_tokens},
            )
            assert older.json()["choices"][0]["text"] == text, row


async def test_what_only_the_model_knows() -> None:
    """CASES 17, 18: lengths against the context are refused at once, named in the client's words."""
    async with _instance("i0") as instance, _gateway(instance.address) as (_, client):
        messages = script_messages([b"x"])
        room = CONTEXT - len(messages[0]["content"])
        for stream in (False, True):
            for field in ("max_tokens", "max_completion_tokens"):
                ask = {"messages": messages, "stream": stream}
                assert (await client.post(CHAT, json=ask | {field: room})).status_code == 200
                refused = await client.post(CHAT, json=ask | {field: room + 1})
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
            ask = {"messages": script_messages([b"x" * CONTEXT]), "stream": stream}
            refused = await client.post(CHAT, json=ask)
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "context_length_exceeded"
            assert str(CONTEXT) in refused.json()["error"]["message"]


@pytest.mark.parametrize("kills", [1, 2])
async def test_killed_instance(kills: int) -> None:
    """`kill -9` of the instance that answers: the text goes on elsewhere, exactly, billed once."""
    words = [f"word{n} 😀 ".encode() for n in range(60)]
    body = {"messages": script_messages(words, dt_ms=10), "user": "ann", "stream": True}
    async with contextlib.AsyncExitStack() as stack:
        instances = {n: await stack.enter_async_context(_instance(n)) for n in ("i0", "i1", "i2")}
        addresses = [i.address for i in instances.values()]
        gateway, client = await stack.enter_async_context(_gateway(*addresses))
        text, killed = "", 0
        async with client.stream("POST", CHAT, json=body) as response:
            async for line in response.aiter_lines():
                if line in ("", "data: [DONE]"):
                    continue
                text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get(
                    "content", ""
                )
                if killed < kills and len(text) > 100 * (killed + 1):
                    killed += 1
                    await (await _busy(instances)).kill()
        assert text.encode() == b"".join(words)
        usage = gateway.deps.store.usage  # type: ignore[attr-defined]
        await wait_until(lambda: stream_bills(usage))
        (bill,) = stream_bills(usage)
        assert bill["completion_tokens"] == len(words)


async def test_disconnect_reaches_the_engine() -> None:
    """CASES 26: a client that goes away leaves nothing running, and the blocks come back."""
    body = {"messages": script_messages([b"x"], dt_ms=5, repeat=2000), "stream": True}
    async with _instance("i0") as instance, _gateway(instance.address) as (_, client):
        async with client.stream("POST", CHAT, json=body) as response:
            lines = response.aiter_lines()
            for _ in range(10):
                await anext(lines)
            assert (await _load(instance)).running == 1
            await lines.aclose()
        async with asyncio.timeout(1):
            while (await _load(instance)).running:
                pass
        load = await _load(instance)
        assert load.free_blocks == load.total_blocks


async def _load(instance: ServiceProcess) -> pb.InstanceLoad:
    async with open_channel(instance.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
        return (await stub.Describe(pb.DescribeRequest())).load  # type: ignore[no-any-return]


async def _busy(instances: dict[str, ServiceProcess]) -> ServiceProcess:
    """The instance that runs the generation."""
    for name, instance in list(instances.items()):
        if (await _load(instance)).running:
            return instances.pop(name)
    raise AssertionError("nobody runs it")


async def test_a_streamed_body_says_neither_length_nor_encoding() -> None:
    """A client that offers compression gets the whole stream, under headers that fit it (CASES 45)."""
    words = [f"w{n} ".encode() for n in range(50)]
    body = {"messages": script_messages(words, dt_ms=2), "stream": True}
    offers = {"Accept-Encoding": "gzip, deflate, br, zstd"}
    async with _instance("i0") as instance, _gateway(instance.address) as (_, client):
        async with client.stream("POST", CHAT, json=body, headers=offers) as response:
            assert "content-encoding" not in response.headers
            assert "content-length" not in response.headers
            assert response.headers["transfer-encoding"] == "chunked"
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        said = (c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])
        assert "".join(said) == b"".join(words).decode()
        whole = await client.post(CHAT, json=body | {"stream": False}, headers=offers)
        assert "content-encoding" not in whole.headers
        assert int(whole.headers["content-length"]) == len(whole.content)
