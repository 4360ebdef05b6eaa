"""Two gateways, one store, two instances and one client in one process, moved step by step.

Sockets are lists; nothing happens by itself, except what one turn of the event loop brings.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from gateway.session.registry import SessionRegistry
from gateway.store.base import SessionStore
from gateway.store.memory import MemoryStore
from gateway.tickets import Principal
from gateway.websocket import Connection
from tests.support.clock import FakeClock
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import make_deps

__all__ = ["FakeSocket", "WindowedClient", "World", "settle"]

TURNS = 6


async def settle() -> None:
    """Let what was scheduled for the next turns of the loop happen."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class FakeSocket:
    """A socket whose other end is read by the test; it may be `full`."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.input_at = 0.0
        self.pings = 0
        self.close_code: int | None = None
        self.full = False
        self.on_writable: Callable[[bool], None] = lambda _: None
        self.on_small: Callable[[bytes], bool] = lambda _: False

    @property
    def piece_at(self) -> float | None:
        return None

    @property
    def idle(self) -> bool:
        return not self.full

    def send_text(self, text: str) -> None:
        if self.close_code is None:
            self.sent.append(text)

    def send_bytes(self, data: bytes) -> None:
        raise AssertionError("this client offered JSON")

    def send_ping(self) -> None:
        self.pings += 1

    def send_close(self, code: int, reason: str) -> None:
        if self.close_code is None:
            self.close_code = code

    async def give_way(self) -> None:
        await asyncio.sleep(0)

    def frames(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.sent]


class GatewayInWorld:
    """One gateway: its registry and its way to the instances."""

    def __init__(self, cluster: FakeCluster, store: SessionStore, clock: FakeClock) -> None:
        self.upstream = FakeUpstream(cluster)
        self.deps = make_deps(self.upstream, store, clock)
        self.registry = SessionRegistry(self.deps)
        self.alive = True

    def connect(self, *, windowed: bool = True) -> tuple[Connection, FakeSocket]:
        socket = FakeSocket()
        connection = Connection(
            self.deps,
            self.registry,
            socket,
            Principal("local"),
            windowed=windowed,
            affinity="local|test",
        )
        connection.open()
        return connection, socket

    def crash(self) -> None:
        """Kill -9: it says and hears nothing any more."""
        self.alive = False
        self.upstream.crash()
        self.registry.timers.close()


class World:
    """The whole. `clock` moves only when told."""

    def __init__(
        self, script: Callable[..., list[bytes]], store: SessionStore | None = None
    ) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(script, auto=False)
        self.memory = MemoryStore(self.clock, 120)
        self.store = store or self.memory
        self.gateways = [self.gateway(), self.gateway()]

    def gateway(self) -> GatewayInWorld:
        return GatewayInWorld(self.cluster, self.store, self.clock)

    async def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.cluster.step()
            await settle()

    async def commit(self) -> None:
        for gateway in self.gateways:
            if gateway.alive:
                await gateway.registry.checkpointer.commit()
        await settle()

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.registry.timers.close()


class WindowedClient:
    """The contract's client, written from its text: keeps what it processed, and checks each frame."""

    def __init__(self) -> None:
        self.session = ""
        self.token = ""
        self.epoch = 0
        self.last_seq = 0
        self.acked = 1
        self.texts: dict[str, bytearray] = {}
        self.tokens: dict[str, int] = {}
        self.ends: dict[str, dict[str, Any]] = {}
        self.accepted: set[str] = set()
        self.errors: list[dict[str, Any]] = []
        self.connection: Connection | None = None
        self.socket = FakeSocket()
        self._resuming = False

    def connect(self, gateway: GatewayInWorld) -> None:
        self.connection, self.socket = gateway.connect()
        self._resuming = False

    async def send(self, **frame: Any) -> None:
        assert self.connection is not None
        await self.connection.on_message(json.dumps(frame))
        await settle()

    async def generate(self, name: str, **fields: Any) -> None:
        self.texts.setdefault(name, bytearray())
        await self.send(type="generate", id=name, prompt="?", **fields)

    async def resume(self, gateway: GatewayInWorld) -> None:
        self.connect(gateway)
        self.socket.sent.clear()  # the provisional session
        self._resuming = True
        offsets = {
            name: -1 if name in self.ends else len(text) for name, text in self.texts.items()
        }
        await self.send(
            type="resume",
            session=self.session,
            token=self.token,
            last_seq=self.last_seq,
            offsets=offsets,
        )

    def cut(self) -> None:
        """The connection is gone; what was under way is lost."""
        if self.connection is not None:
            self.connection.gone()
        self.connection = None
        self.socket = FakeSocket()

    @property
    def connected(self) -> bool:
        return self.connection is not None and self.socket.close_code is None

    def read(self, most: int = 1_000_000) -> int:
        """Process up to so many of the frames that have arrived."""
        batch, self.socket.sent = self.socket.sent[:most], self.socket.sent[most:]
        for text in batch:
            self._take(json.loads(text))
        return len(batch)

    def _take(self, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        if kind == "session":
            self.session, self.token, self.epoch = frame["session"], frame["token"], frame["epoch"]
        elif kind == "resumed":
            assert frame["epoch"] > self.epoch, "epochs rise"
            assert frame["from_seq"] == self.last_seq + 1
            assert frame["token"] == self.token
            self.epoch = frame["epoch"]
            self._resuming = False
        elif "seq" in frame:
            if self._resuming:
                self.errors.append(frame)  # the provisional session's
                return
            self._sequenced(frame)

    def _sequenced(self, frame: dict[str, Any]) -> None:
        seq, name = frame["seq"], frame.get("id")
        assert seq >= self.acked, "an acknowledged frame was sent again"
        if seq <= self.last_seq:
            return
        assert seq == self.last_seq + 1, "numbers rise by one"
        self.last_seq = seq
        match frame["type"]:
            case "accepted":
                self.accepted.add(frame["id"])
            case "token":
                text = self.texts[frame["id"]]
                assert frame["offset"] == len(text), "text follows text"
                assert len(json.dumps(frame, ensure_ascii=False).encode()) <= 4096
                text += frame["delta"].encode()
                self.tokens[frame["id"]] = self.tokens.get(frame["id"], 0) + frame.get("tokens", 1)
            case "done":
                self.ends.setdefault(frame["id"], frame)
            case "error" if "usage" in frame and name is not None:
                self.ends.setdefault(name, frame)
            case "error":
                self.errors.append(frame)

    async def ack(self) -> None:
        if self.connected and not self._resuming:
            self.acked = self.last_seq + 1
            await self.send(type="ack", seq=self.acked)
