"""The answer on its way: back-pressure, and a client that goes away in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.openai import sse
from gateway.openai.account import Caller
from gateway.openai.answers import ChatShape
from gateway.openai.choices import Choices
from gateway.openai.run import CREDIT_TOKENS
from gateway.openai.schema import Asked
from gateway.openai.sse import GenerationResponse
from seedance.protocol.request import ChatMessage, GenerateRequest
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import make_deps
from tests.support.waiting import wait_until

TOKENS = 1000


class Client:
    """The other end of an ASGI application: reads when `reading` is set, leaves when told."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()
        self.leaving = asyncio.Event()
        self.received = b""

    async def receive(self) -> dict[str, Any]:
        await self.leaving.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reading.wait()
        self.received += message.get("body", b"")


def response_on(
    cluster: FakeCluster, *, stream: bool, count: int = 1
) -> Callable[[Client], Awaitable[None]]:
    deps = make_deps(FakeUpstream(cluster))
    request = GenerateRequest(messages=(ChatMessage("user", "hi"),))
    credit = CREDIT_TOKENS if stream else None
    choices = Choices(deps, [request], Caller("acme", "ada", "chat"), count, credit=credit)

    def shape(model: str) -> ChatShape:
        return ChatShape("chatcmpl-1", 1, model)

    response = GenerationResponse(choices, Asked(request, stream=stream), shape, {})
    return lambda client: response({"type": "http"}, client.receive, client.send)


async def test_client_that_reads_slowly() -> None:
    """CASES 43: what a stalled reader has not taken is bounded; then it gets all of it, merged."""
    cluster = FakeCluster(lambda _: [b"~"] * TOKENS)
    client = Client()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(response_on(cluster, stream=True)(client))
        await wait_until(lambda: cluster.computed >= CREDIT_TOKENS)
        assert not cluster.step()
        assert cluster.computed == CREDIT_TOKENS
        client.reading.set()
    assert client.received.count(b"~") == TOKENS
    # What had waited came as one piece; role, reason and [DONE] are events, too.
    assert client.received.count(b"data: ") <= TOKENS - CREDIT_TOKENS + 8
    assert client.received.endswith(b"data: [DONE]\n\n")


async def test_client_that_never_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 43: after the time that a silent WebSocket has, its blocks are free."""
    monkeypatch.setattr(sse, "STALL_S", 0.05)
    cluster = FakeCluster(lambda _: [b"~"] * TOKENS)
    async with asyncio.timeout(5):
        await response_on(cluster, stream=True)(Client())
    assert cluster.running == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize("count", [1, 3])
async def test_client_that_goes_away(stream: bool, reading: bool, count: int) -> None:
    """CASES 26: whatever it is doing, the answer stops and so does every choice's generation."""
    cluster = FakeCluster(lambda _: [b"~"] * 50_000)
    client = Client()
    if reading:
        client.reading.set()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(response_on(cluster, stream=stream, count=count)(client))
        await wait_until(lambda: cluster.computed > 10)
        assert cluster.running == count
        client.leaving.set()
    computed = cluster.computed
    assert cluster.running == 0
    assert not cluster.step()
    assert cluster.computed == computed


async def test_cancelled_task_cancels_the_generation() -> None:
    """A server that gives up on the request (its drain is over) leaves no generation behind."""
    cluster = FakeCluster(lambda _: [b"~"] * 50_000)
    task = asyncio.create_task(_run(response_on(cluster, stream=True)(Client())))
    await wait_until(lambda: cluster.computed > 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cluster.running == 0


async def _run(answer: Awaitable[None]) -> None:
    await answer
