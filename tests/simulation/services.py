"""The processes of the mesh, made of their own code; only transports, threads and time are simulated."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gateway.__main__ import INSTANCES_POLL_S, INSTANCES_WAIT_S
from gateway.connections import Connections
from gateway.deps import GatewayDeps
from gateway.metering.meter import UsageMeter
from gateway.session.registry import SessionRegistry
from gateway.subprotocols import speech
from gateway.tickets import Principal
from gateway.upstream.membership import RouterWatch
from gateway.upstream.pool import InstancePool
from gateway.websocket import Connection
from inference.engine.engine import Engine
from inference.engine.limits import EngineLimits
from inference.engine.loop import EngineLoop
from inference.engine.messages import Command, StepOutput
from inference.intake import Intake
from inference.registration import Registration
from inference.script import ScriptPreparer, ScriptRunner, script_info
from inference.service import Deliverer, InferenceService, add_to_server
from mesh.clock import Clock
from mesh.rpc.convert import load_to_pb
from mesh.telemetry.metrics import GatewayMetrics
from mesh.telemetry.tracing import Tracing
from router.config import RouterSettings
from router.service import RouterService
from seedance.protocol.connection import Deliver
from seedance.protocol.effects import Send
from seedance.protocol.frames import Ack
from seedance.protocol.json_codec import plain_ack
from seedance.v2 import router_pb2, router_pb2_grpc
from tests.simulation.checkers import ConnectionWatch, Watch
from tests.simulation.loop import Host, HostClock
from tests.simulation.network import End, Network
from tests.simulation.rpc_server import Server
from tests.simulation.sockets import ServerSocket
from tests.simulation.store import RemoteStore, StoreServer
from tests.support.gateway_under_test import make_deps

__all__ = ["RESUME_TTL_S", "GatewayProcess", "InstanceProcess", "RouterProcess"]

ROUTER = "router:7070"
RESUME_TTL_S = 10.0
SECRET = "simulated"  # noqa: S105 - nobody else can dial in
# What a step of the engine takes.
STEP_S = 0.001


@functools.cache
def _tracing() -> Tracing:
    return Tracing("gateway", "simulated")


@functools.cache
def _metrics() -> GatewayMetrics:
    return GatewayMetrics()


class _WatchedConnection(Connection):
    """A connection whose frames are seen by the checkers."""

    def __init__(self, watch: ConnectionWatch, *args: Any, **options: Any) -> None:
        self._watch = watch
        super().__init__(*args, **options)

    def send(self, effect: Send) -> None:
        # While it takes a session over, that session's frames come before its own name for the owner.
        taken = (o for o in self._registry.owners if o.carrier is self and o is not self._owner)
        owner = next(taken, self._owner)
        self._watch.sent(effect.frame, effect.seq, owner.machine.delivery.window.size)
        super().send(effect)

    def _do(self, effect: Any) -> None:
        if isinstance(effect, Deliver):
            self._watch.received(effect.event)
        super()._do(effect)

    def _on_small(self, message: bytes) -> bool:
        # Before what it makes room for is sent; one that takes the long way is seen there once more.
        seq = plain_ack(message)
        if seq is not None:
            self._watch.received(Ack(seq))
        return super()._on_small(message)

    async def _take_over(self, resume: Any) -> None:
        self._watch.received(resume)
        await super()._take_over(resume)


class GatewayProcess:
    """One gateway, from start to its end."""

    def __init__(
        self, name: str, urls: str, network: Network, store: StoreServer, watch: Watch
    ) -> None:
        self.host = Host(name)
        self.clock = HostClock()
        self._network = network
        self._watch = watch
        self._address = f"{name}:80"
        self.pool = InstancePool(
            RouterWatch(ROUTER, name, self.clock), self.clock, mesh_secret=SECRET
        )
        remote: Any = RemoteStore(store, self.clock)
        settings = make_deps(
            self.pool, remote, self.clock, _tracing(), gateways=urls, resume_ttl_s=RESUME_TTL_S
        )
        self.deps = GatewayDeps(
            settings.settings,
            self.clock,
            remote,
            settings.upstream,
            _tracing(),
            _metrics(),
            settings.authenticator,
            UsageMeter(remote, self.clock),
        )
        self.registry = SessionRegistry(self.deps)
        self.connections = Connections(1000)
        self.tasks = [self.host.spawn(self._guard(self.pool.run()))]
        self.tasks.append(self.host.spawn(self._guard(self.registry.run())))
        self._ready = asyncio.Event()
        self.host.spawn(self._instances_known())
        network.listen(self._address, self.host, self._on_connect)

    async def _instances_known(self) -> None:
        for _ in range(round(INSTANCES_WAIT_S / INSTANCES_POLL_S)):
            if self.pool.ready():
                break
            await asyncio.sleep(INSTANCES_POLL_S)
        self._ready.set()

    async def _guard(self, work: Any) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - it would end the process
            self._watch.breach(f"{self.host.name} ends: {error!r}")

    def _on_connect(self, end: End) -> None:
        self.host.spawn(self._serve(end))

    async def _serve(self, end: End) -> None:
        socket = ServerSocket(end, self.clock)
        # Who comes while it starts waits in the socket's backlog.
        await self._ready.wait()
        if not await socket.greeting():
            return
        if not self.connections.admits(""):
            socket.send_close(4429, "too many connections")
            return
        client = end.peer.host.name
        connection = _WatchedConnection(
            ConnectionWatch(self._watch, f"{client} at {self.host.name}"),
            self.deps,
            self.registry,
            socket,
            Principal("local"),
            windowed=True,
            affinity=f"local|{client}",
            speech=speech(socket.subprotocol, socket),
        )
        with self.connections.holding(connection, ""):
            connection.open()
            try:
                async for message in socket.messages():
                    await connection.on_message(message)
            finally:
                connection.gone()

    async def drain(self, grace_s: float) -> None:
        """SIGTERM: as `gateway.__main__` and `gateway.server` do it, then exit."""
        self._network.unlisten(self._address)
        await self.connections.drain(grace_s)
        await self.registry.close()


class _VirtualEngine(EngineLoop):
    """The engine's loop as a task: a step takes `STEP_S`."""

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[StepOutput], list[Command]],
        watch: Watch,
        clock: Clock,
    ) -> None:
        crash = functools.partial(watch.breach, "the engine failed")
        super().__init__(engine, deliver, crash, clock, overlap=False)
        self._news = asyncio.Event()

    def offer(self, commands: Sequence[Command]) -> bool:
        taken = super().offer(commands)
        self._news.set()
        return taken

    def post(self, command: Command) -> None:
        super().post(command)
        self._news.set()

    async def play(self) -> None:
        """Step for ever."""
        while True:
            self._news.clear()
            self.step()
            if self._engine.wait_s == 0:
                await asyncio.sleep(STEP_S)
            elif len(self._engine.desk.directory):
                await _within(self._news, self._engine.wait_s)
            else:
                # Nothing to look after: a real one would look around all the same.
                await self._news.wait()


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


class InstanceProcess:
    """One instance with the script engine, wired as `inference.instance` does it."""

    def __init__(self, name: str, start: int, network: Network, watch: Watch, blocks: int) -> None:
        self.host = Host(name)
        clock = HostClock()
        info = script_info(kv_blocks=blocks)
        limits = EngineLimits(
            step_tokens_max=8192, transcript_ttl_s=RESUME_TTL_S + 60, prefix_cache=True
        )
        self.engine = Engine(ScriptRunner(info), limits, clock)
        deliverer = Deliverer(asyncio.get_running_loop(), clock, lambda _: None)
        loop = _VirtualEngine(self.engine, deliverer.deliver, watch, clock)
        self.intake = Intake(info, ScriptPreparer(), loop, clock)
        self.service = InferenceService(
            instance=name,
            engine_name="script",
            secret=SECRET,
            info=info,
            engine=loop,
            intake=self.intake,
            deliverer=deliverer,
            clock=clock,
        )
        self._server = Server(network, self.host, f"{name}:7000")
        self._health = health.aio.HealthServicer()
        add_to_server(self.service, self._server)  # type: ignore[arg-type]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._registration = Registration(
            ROUTER,
            router_pb2.Instance(
                id=name,
                address=f"{name}:7000",
                models=["script"],
                instance_class="*",
                weight=1.0,
                start_id=f"{name}-{start}",
            ),
            lambda: load_to_pb(loop.load),
        )
        self.host.spawn(loop.play())
        self.host.spawn(self._registration.run())
        self.host.spawn(self._start())

    async def _start(self) -> None:
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        self._server.start()

    async def drain(self, grace_s: float) -> None:
        """SIGTERM: as `inference.instance` does it, then exit."""
        self._registration.drain()
        self.intake.draining = True
        await self._health.enter_graceful_shutdown()
        try:
            async with asyncio.timeout(grace_s):
                while self.service.live_streams:  # noqa: ASYNC110 - as the instance looks
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        await self._registration.leave()
        self._server.stop()


class RouterProcess:
    """The router."""

    def __init__(self, network: Network, lease_ms: int) -> None:
        self.host = Host("router")
        settings = RouterSettings(lease_ms=lease_ms)
        service = RouterService(settings, HostClock(), _tracing())
        server = Server(network, self.host, ROUTER)
        router_pb2_grpc.add_RouterServicer_to_server(service, server)
        self.host.spawn(service.run())
        server.start()
