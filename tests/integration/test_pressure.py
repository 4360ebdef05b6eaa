"""An instance's pressure on its way to a client: real gRPC, a real gateway, a real WebSocket."""

from __future__ import annotations

import asyncio
import statistics
import time

from gateway.upstream.membership import StaticList
from gateway.upstream.pool import InstancePool
from mesh.clock import SystemClock
from seedance.v2 import inference_pb2 as pb
from tests.support.fake_inference import running_instance
from tests.support.gateway_under_test import running_gateway, wire
from tests.support.waiting import wait_until

ROUNDS = 20
# What the way may take on a busy machine; the contract's 3 ms are a median here.
LATE_S = 0.25


async def test_pressure_reaches_the_socket_at_once() -> None:
    """A level leaves for the client as soon as it is heard: no pump, no commit, no timer between."""
    async with running_instance("i0") as instance:
        pool = InstancePool(StaticList([instance.address]), SystemClock())
        running = asyncio.create_task(pool.run())
        await wait_until(pool.ready)
        took = []
        async with running_gateway(pool) as gateway, wire(gateway.url) as client:
            await client.send(type="generate", id="a", prompt="x")
            call = await instance.call()
            (stream_id,) = await call.opened()
            accepted = pb.Accepted(instance="i0", model="m")
            call.send(
                pb.StreamResponse(frames=[pb.ServerFrame(stream_id=stream_id, accepted=accepted)])
            )
            await client.until("accepted")
            for number in range(ROUNDS):
                # Up and up again: a fall would wait for its second.
                level = pb.PRESSURE_LEVEL_PAUSE if number % 2 else pb.PRESSURE_LEVEL_THROTTLE
                gateway.registry.owners[0].machine.delivery.pressure.fresh()
                frame = pb.ServerFrame(pressure=pb.Pressure(level=level, reason="full"))
                started = time.perf_counter()
                call.send(pb.StreamResponse(frames=[frame]))
                heard = await client.until("pressure")
                took.append(time.perf_counter() - started)
                assert heard["level"] == ("pause" if number % 2 else "throttle")
                assert heard["reason"] == "full"
        running.cancel()
        await asyncio.wait([running])
    print(f"engine's gRPC server to client: median {statistics.median(took) * 1000:.2f} ms")  # noqa: T201
    assert statistics.median(took) < LATE_S
