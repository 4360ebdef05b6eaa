"""What readers that stall cost the gateway and the others, and what a storm of acks costs them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from launcher.bench.figures import Figure, cpu_s, percentile, resident_bytes, unsent_bytes
from launcher.bench.mesh import RunningMesh, running_mesh
from launcher.bench.reader import Reader, open_readers, script_messages
from launcher.blueprint import UpOptions
from launcher.ports import free_port
from mesh.rpc.channel import open_channel
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc

__all__ = ["ack_storm", "slow_readers"]

KIB = 1024
WITHIN_S = 120.0
SETTLE_S, POLL_S = 4.0, 1.0
PING_EVERY_S = 4.0
# 500 KB of text, which no window and no buffer of a connection holds: whoever does not read is stalled.
FLOOD_TOKENS = 100_000
MEMORY_MAX_BYTES = 64 * KIB
RISE_MAX = 0.05
# Two thousand readers at this pace leave two cores half idle. A phase outlasts the 8 s after which a
# stream pauses whose reader acknowledges nothing (§2).
DT_MS, PHASE_S, ROUNDS = 800.0, 16.0, 3
ASKED_WITHIN_S = 10.0
STORM_READERS, STORM_DT_MS, STORM_PHASE_S = 200, 50.0, 8.0
STORM_PER_S = 100_000
_ROOMY = ("--batch-max", "2048", "--step-tokens-max", "8192", "--queue-max", "4096")


def _options(data: Path) -> UpOptions:
    return UpOptions(
        data=data,
        port=free_port(),
        gateways=1,
        instances=2,
        engine="script",
        # All readers come from one address.
        gateway_flags=("--connections-per-address", "0"),
        inference_flags=_ROOMY,
    )


def _gateway(mesh: RunningMesh) -> tuple[int, int, str]:
    """Its process id, port and address."""
    address = mesh.specs["gateway-0"].address
    pid = mesh.pid("gateway-0")
    assert pid is not None  # noqa: S101 - nobody kills it here
    return pid, int(address.rpartition(":")[2]), address


async def _keep_alive(readers: list[Reader]) -> None:
    """As an SDK does whose program does not read: it still says that it is there.

    A client that says nothing either is closed with 4408 after the session's 15 s, and may resume.
    """
    while True:
        await asyncio.sleep(PING_EVERY_S)
        for reader in readers:
            reader.write({"type": "ping", "t": 0})


@contextlib.asynccontextmanager
async def _kept_alive(readers: list[Reader]) -> AsyncIterator[None]:
    """All of them are there until the block is left. Raises what one heard that is not any more."""
    pinging = asyncio.create_task(_keep_alive(readers))
    try:
        yield
    finally:
        pinging.cancel()
    for reader in readers:
        if reader.ended.done():
            reader.ended.result()
            raise ConnectionError(f"a stream has ended: {reader.heard_last}")


async def _load_of(address: str) -> pb.InstanceLoad:
    async with open_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
        answer: pb.DescribeResponse = await stub.Describe(pb.DescribeRequest())
    return answer.load


async def _all_paused(mesh: RunningMesh, count: int) -> None:
    """Return when so many sequences hold blocks and none of them is in a batch, or wants to be."""
    addresses = [mesh.specs[name].address for name in mesh.names("inference")]
    async with asyncio.timeout(WITHIN_S):
        while True:
            loads = await asyncio.gather(*map(_load_of, addresses))
            busy = sum(load.running + load.waiting for load in loads)
            if not busy and sum(load.total_blocks - load.free_blocks for load in loads) >= count:
                return
            await asyncio.sleep(POLL_S)


async def _stalled_memory(data: Path, count: int, *, windowed: bool) -> tuple[float, float]:
    """Bytes per stalled reader, beyond an idle session: of the gateway, and in its send queues."""
    async with running_mesh(_options(data)) as mesh:
        pid, port, address = _gateway(mesh)
        readers = await open_readers(address, count, windowed=windowed)
        for reader in readers:
            reader.ask(script_messages([b"word "], dt_ms=0, repeat=2))
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(reader.ended for reader in readers))
        await asyncio.sleep(SETTLE_S)
        before, queued = resident_bytes(pid), unsent_bytes(port)
        for reader in readers:
            reader.stall()
            reader.ask(script_messages([b"word "], dt_ms=0, repeat=FLOOD_TOKENS))
        async with _kept_alive(readers):
            await _all_paused(mesh, count)
            await asyncio.sleep(SETTLE_S)
        own = (resident_bytes(pid) - before) / count
        kernel = (unsent_bytes(port) - queued) / count
        for reader in readers:
            reader.cut()
    return own, kernel


class _Gaps:
    """Times between two tokens of each reader that is watched, in seconds."""

    def __init__(self, readers: list[Reader]) -> None:
        self.seen: list[float] = []
        self._loop = asyncio.get_running_loop()
        for reader in readers:
            reader.on_token = self._token

    def _token(self, reader: Reader) -> None:
        now = self._loop.time()
        if reader.heard_at:
            self.seen.append(now - reader.heard_at)
        reader.heard_at = now

    async def during(self, seconds: float) -> list[float]:
        """The gaps that end in the next seconds."""
        self.seen = []
        await asyncio.sleep(seconds)
        return self.seen


class _Load:
    """What share of the machine's cores mesh and clients use, from here on."""

    def __init__(self, mesh: RunningMesh) -> None:
        self._pids = [pid for name in mesh.specs if (pid := mesh.pid(name)) is not None]
        self._used, self._at = self._cpu_s(), time.perf_counter()

    def _cpu_s(self) -> float:
        return time.process_time() + sum(map(cpu_s, self._pids))

    def share(self) -> float:
        """1: all of them, all the time."""
        seconds = time.perf_counter() - self._at
        return (self._cpu_s() - self._used) / seconds / (os.cpu_count() or 1)


async def _phases(
    watched: list[Reader], others: list[Reader], step: Callable[[], None]
) -> tuple[list[float], list[float]]:
    """The watched ones' gaps while the others read, and from when these stall until they read on."""
    gaps = _Gaps(watched)
    calm: list[float] = []
    stalled: list[float] = []
    for _ in range(ROUNDS):
        calm += await gaps.during(PHASE_S)
        for reader in others:
            reader.stall()
        stalled += await gaps.during(PHASE_S)
        for reader in others:
            reader.read_on()
        step()
        await asyncio.sleep(SETTLE_S)
    return calm, stalled


async def _rise(data: Path, count: int, step: Callable[[], None]) -> Figure:
    """What the half that reads notices of the half that does not."""
    async with running_mesh(_options(data)) as mesh:
        _, _, address = _gateway(mesh)
        readers = await open_readers(address, count)
        # One after the other, as people come: all at once, each would wait for all others.
        for reader in readers:
            reader.ask(script_messages([b"word "], dt_ms=DT_MS, repeat=100_000))
            await asyncio.sleep(ASKED_WITHIN_S / count)
        async with _kept_alive(readers):
            await asyncio.sleep(SETTLE_S)
            load = _Load(mesh)
            calm, stalled = await _phases(readers[::2], readers[1::2], step)
            share = load.share()
        for reader in readers:
            reader.cut()
    p99, p99_stalled = percentile(calm, 0.99), percentile(stalled, 0.99)
    rise = p99_stalled / p99 - 1
    said = (
        f"{p99 * 1000:.0f} → {p99_stalled * 1000:.0f} ms ({rise:+.1%}); mesh and clients took "
        f"{share:.0%} of the cores"
    )
    name = f"the others' inter-token p99 while half of {count:,} stall, a token in {DT_MS:g} ms"
    return Figure(name, "rises ≤ 5 %", said, rise <= RISE_MAX)


async def slow_readers(data: Path, count: int, step: Callable[[], None]) -> list[Figure]:
    """Half of `count` readers stall: what they hold, with a window and without, and who notices."""
    half = count // 2
    own, kernel = await _stalled_memory(data / "windowed", half, windowed=True)
    step()
    own_simple, kernel_simple = await _stalled_memory(data / "simple", half, windowed=False)
    step()
    return [
        _memory(f"a stalled reader's memory in the gateway, of {half:,}", own, kernel),
        _memory(f"the same of {half:,} simple clients (no window)", own_simple, kernel_simple),
        await _rise(data / "paced", count, step),
    ]


def _memory(name: str, own: float, kernel: float) -> Figure:
    said = f"{own / KIB:.1f} KiB, and {kernel / KIB:.1f} KiB in the kernel's send queue"
    return Figure(name, "≤ 64 KiB beyond an idle session", said, own <= MEMORY_MAX_BYTES)


class _Storm(threading.Thread):
    """One connection that acknowledges a hundred thousand times a second, or as often as it may."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        host, _, port = address.rpartition(":")
        self.sent = 0
        self.over = threading.Event()
        self._sock = socket.create_connection((host, int(port)))
        self._sock.sendall(
            f"GET /v2/infer HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            "Sec-WebSocket-Protocol: seedance.v2.json\r\n\r\n".encode()
        )
        self._sock.recv(4096)
        self._sock.settimeout(0.2)

    def run(self) -> None:
        """Send until `over`; where the gateway does not read, wait."""
        payload = json.dumps({"type": "ack", "seq": 1}).encode()
        burst = 1_000
        block = (bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload) * burst
        next_at, left = time.perf_counter(), memoryview(block)
        while not self.over.is_set():
            try:
                left = left[self._sock.send(left) :]
            except TimeoutError:
                continue
            except OSError:
                return
            if not left:
                self.sent += burst
                left = memoryview(block)
                next_at += burst / STORM_PER_S
                time.sleep(max(0.0, next_at - time.perf_counter()))

    def close(self) -> None:
        """End it."""
        self.over.set()
        self.join()
        self._sock.close()


async def ack_storm(data: Path, step: Callable[[], None]) -> list[Figure]:
    """Paced streams while one connection storms, and while none does, in turn."""
    calm: list[float] = []
    stormy: list[float] = []
    sent = 0
    async with running_mesh(_options(data)) as mesh:
        _, _, address = _gateway(mesh)
        readers = await open_readers(address, STORM_READERS)
        for reader in readers:
            reader.ask(script_messages([b"word "], dt_ms=STORM_DT_MS, repeat=100_000))
        gaps = _Gaps(readers)
        await gaps.during(2)
        for _ in range(ROUNDS):
            calm += await gaps.during(STORM_PHASE_S)
            storm = await asyncio.to_thread(_Storm, address)
            storm.start()
            stormy += await gaps.during(STORM_PHASE_S)
            await asyncio.to_thread(storm.close)
            sent += storm.sent
            step()
    p50, p50_stormy = percentile(calm, 0.5) * 1000, percentile(stormy, 0.5) * 1000
    p99, p99_stormy = percentile(calm, 0.99) * 1000, percentile(stormy, 0.99) * 1000
    taken = sent / (ROUNDS * STORM_PHASE_S)
    said = (
        f"{len(stormy) / len(calm):.0%} of their tokens arrive; p50 {p50:.0f} → {p50_stormy:.0f} ms, "
        f"p99 {p99:.0f} → {p99_stormy:.0f} ms; {taken:,.0f} acks/s were taken"
    )
    name = f"{STORM_READERS} streams beside a connection that sends {STORM_PER_S:,} acks/s"
    return [Figure(name, "nobody is disturbed", said)]
