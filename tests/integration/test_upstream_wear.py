"""What wears a connection out: peers that hang up in silence, and traces at every hop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.upstream.membership import StaticList
from gateway.upstream.pool import InstancePool
from mesh.clock import SystemClock
from mesh.telemetry.tracing import Tracing
from tests.support.gateway_under_test import GatewayUnderTest, Wire, running_gateway, wire
from tests.support.instance import SECRET, running_instance
from tests.support.scripts import script_messages
from tests.support.tcp_proxy import TcpProxy, running_proxy
from tests.support.waiting import wait_until

WORDS = [f"word{n} 😀 ".encode() for n in range(40)]
TEXT = b"".join(WORDS).decode()
REQUESTS, HANG_UP_EVERY = 100, 25


@contextlib.asynccontextmanager
async def _mesh(
    **options: object,
) -> AsyncIterator[tuple[GatewayUnderTest, TcpProxy]]:
    """A gateway, a proxy that may hang up, and an instance behind it."""
    async with running_instance() as instance, running_proxy(instance.address) as proxy:
        pool = InstancePool(StaticList([proxy.address]), SystemClock(), mesh_secret=SECRET)
        running = asyncio.create_task(pool.run())
        await wait_until(pool.ready)
        async with running_gateway(pool, **options) as gateway:  # type: ignore[arg-type]
            yield gateway, proxy
        running.cancel()
        await asyncio.wait([running])


async def _ask(client: Wire, name: str, **fields: object) -> dict[str, object]:
    await client.send(type="generate", id=name, messages=script_messages(WORDS), **fields)
    done = await client.until("done", id=name)
    await client.send(type="ack", seq=client.last_seq + 1)
    return done


async def test_an_upstream_that_hung_up_in_silence_costs_nothing() -> None:
    """An idle connection is closed by its peer now and then: no error, billed once (CASES 47)."""
    async with _mesh() as (gateway, proxy), wire(gateway.url) as client:
        for number in range(REQUESTS):
            if number % HANG_UP_EVERY == 0:
                proxy.hang_up()
            done = await _ask(client, f"r{number}")
            assert done["usage"]["completion_tokens"] == len(WORDS)  # type: ignore[index]
            assert client.text(f"r{number}") == TEXT
        assert not [frame for frame in client.seen if frame["type"] == "error"]


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "untraced"])
async def test_traces_change_nothing(*, traced: bool) -> None:
    """With every request traced the bytes are those without, and a cancel still ends it (CASES 37)."""
    spans = InMemorySpanExporter()
    processor = SimpleSpanProcessor(spans) if traced else None
    tracing = Tracing("gateway", "test", processor=processor)
    async with _mesh(tracing=tracing) as (gateway, _), wire(gateway.url) as client:
        await _ask(client, "whole")
        assert client.text("whole") == TEXT
        endless = script_messages(WORDS, dt_ms=20, repeat=1000)
        await client.send(type="generate", id="endless", messages=endless)
        await client.until("token", id="endless")
        await client.send(type="cancel", id="endless")
        assert (await client.until("done", id="endless"))["finish_reason"] == "cancelled"
        names = [span.name for span in spans.get_finished_spans()]
        assert (len(names) >= 2) == traced
