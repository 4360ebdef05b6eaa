"""One instance, wired: engine, service, registration, metrics; serves until asked to stop, then drains."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from inference.config import InferenceSettings
from inference.engine.engine import Engine
from inference.engine.loop import EngineLoop
from inference.engine.runner import ModelInfo, Preparer, Runner
from inference.engine.step_trace import StepTrace
from inference.intake import Intake
from inference.openai.engine import UpstreamEngine
from inference.openai.wire import Upstream
from inference.public_prefix import public_prefix
from inference.registration import Registration
from inference.report import Reporter
from inference.service import SERVICE_NAME, Deliverer, InferenceService, add_to_server
from mesh.clock import SystemClock
from mesh.pauses import PauseMeter
from mesh.rpc.channel import open_channel
from mesh.rpc.convert import load_to_pb
from mesh.rpc.identity import identity_of
from mesh.rpc.server import RpcServer
from mesh.settings import exit_with
from mesh.telemetry.metrics import Folded, InferenceMetrics, serve_metrics
from mesh.telemetry.tracing import Tracing
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import router_pb2

__all__ = ["Instance"]

DRAIN_LOOK_S = 0.05
CALLS_END_S = 0.5


class Instance:
    """One instance's parts; `address` is known once it serves, `crashed` tells that its engine failed."""

    def __init__(
        self,
        settings: InferenceSettings,
        runner: Runner | Upstream,
        preparer: Preparer | None,
        stop: asyncio.Event,
    ) -> None:
        clock = SystemClock()
        loop = asyncio.get_running_loop()
        self.address = ""
        self.crashed = False
        self._settings = settings
        self._stop = stop
        self._loop = loop
        self._tracing = _tracing(settings)
        self._info = runner.info
        metrics = InferenceMetrics()
        reporter = Reporter(
            metrics,
            self._tracing,
            clock,
            instance=settings.instance_id,
            model=self._info.name,
        )
        deliverer = Deliverer(loop, clock, reporter.report)
        self._core: Engine | UpstreamEngine
        self._engine: EngineLoop | UpstreamEngine
        if isinstance(runner, Upstream):
            self._core = self._engine = UpstreamEngine(
                settings, runner, clock, deliverer.deliver, self._on_crash
            )
        else:
            prefix = public_prefix(settings.public_prefix_file, preparer)
            limits = replace(settings.limits(), public_prefix=prefix)
            self._core = Engine(runner, limits, clock, _trace(settings, runner.info))
            self._engine = EngineLoop(
                self._core,
                deliverer.deliver,
                self._on_crash,
                clock,
                overlap=settings.engine != "script",
            )
        self._pauses = PauseMeter(clock)
        self._intake = Intake(
            self._info, preparer, self._engine, clock, threads=settings.intake_threads
        )
        self._service = InferenceService(
            instance=settings.instance_id,
            engine_name=settings.engine,
            secret=settings.mesh_secret.get_secret_value(),
            info=self._info,
            engine=self._engine,
            intake=self._intake,
            deliverer=deliverer,
            clock=clock,
        )
        self._rpc = RpcServer([SERVICE_NAME], identity_of(settings))
        add_to_server(self._service, self._rpc.server)
        self._stop_metrics = _serve_metrics(settings, metrics, self._core)

    async def serve(self) -> None:
        """Serve until `stop`, then take nothing new and let streams end within the grace time."""
        settings = self._settings
        port = await self._rpc.start(f"{settings.host}:{settings.port}")
        self.address = f"{settings.host}:{port}"
        self._engine.start()
        registration = self._registration()
        if settings.announce:
            sys.stdout.write(f"ready {self.address}\n")
            sys.stdout.flush()
        if registration is None:
            await self._stop.wait()
            await self._drain()
        else:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(work()) for work in (registration.run, self._pauses.run)
                ]
                await self._stop.wait()
                registration.drain()
                await self._drain()
                for task in running:
                    task.cancel()
            await registration.leave()
        await self._rpc.drain(CALLS_END_S)
        self._engine.stop()
        self._intake.close()
        self._stop_metrics()
        if self._tracing is not None:
            self._tracing.close()

    async def _drain(self) -> None:
        # Gateways' calls never end by themselves, so it is the streams in them that are waited for.
        self._intake.draining = True
        await self._rpc.health.enter_graceful_shutdown()
        grace_s = 0.0 if self.crashed else self._settings.drain_grace_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._service.live_streams:  # noqa: ASYNC110 - looked at 20 times a second
                    await asyncio.sleep(DRAIN_LOOK_S)

    def _registration(self) -> Registration | None:
        settings, info = self._settings, self._info
        if not settings.router:
            return None
        tables = self._core.scheduler.places.tables if isinstance(self._core, Engine) else None
        instance = router_pb2.Instance(
            id=settings.instance_id,
            address=settings.advertise or self.address,
            models=[info.name, *info.aliases],
            instance_class=settings.instance_class,
            weight=settings.weight,
            start_id=secrets.token_hex(8),
            context_length=info.context_length,
            canary=settings.canary,
        )
        dial = partial(open_channel, identity=identity_of(settings))
        marks = tables.marks if tables else tuple
        secret = settings.mesh_secret.get_secret_value()
        return Registration(settings.router, instance, self._load, marks, dial, secret)

    def _load(self) -> pb.InstanceLoad:
        return load_to_pb(replace(self._engine.load, pause_p99_ms=self._pauses.p99_ms))

    def _on_crash(self) -> None:
        self.crashed = True
        self._loop.call_soon_threadsafe(self._stop.set)


def _trace(settings: InferenceSettings, info: ModelInfo) -> StepTrace | None:
    if settings.trace_output is None:
        return None
    try:
        return StepTrace(settings.trace_output, info.block_size)
    except OSError as error:
        exit_with(f"cannot write {settings.trace_output}: {error.strerror}; change --trace-output")


def _tracing(settings: InferenceSettings) -> Tracing | None:
    if not settings.otlp_endpoint:
        return None
    return Tracing(
        "inference",
        settings.instance_id,
        endpoint=settings.otlp_endpoint,
        ratio=settings.trace_ratio,
    )


def _serve_metrics(
    settings: InferenceSettings, metrics: InferenceMetrics, engine: Engine | UpstreamEngine
) -> Callable[[], None]:
    if settings.metrics_port is None:
        return lambda: None
    places = engine.scheduler.places
    counters: dict[str, tuple[str, Callable[[], float]]] = {
        "tokens": ("Tokens chosen.", lambda: engine.token_count),
        "preemptions": ("Sequences that lost their blocks.", lambda: places.preemptions),
    }
    if isinstance(engine, UpstreamEngine):
        text = "Tokens by which the upstream's count differed from what came."
        counters["upstream_miscounted_tokens"] = (text, lambda: engine.miscounted)
    else:
        stages = engine.stages
        counters["steps"] = ("Steps computed.", lambda: stages.steps)
        for stage in stages.seconds:
            text = f"Time in the stage {stage}; fetch_wait is the model's while there was work."
            counters[f"stage_{stage}_seconds"] = (text, partial(stages.seconds.__getitem__, stage))
    gauges: dict[str, tuple[str, Callable[[], float]]] = {
        "running": ("Sequences in the batch.", lambda: engine.load.running),
        "waiting": ("Requests that wait.", lambda: engine.load.waiting),
        "free_blocks": ("Free KV blocks.", lambda: engine.load.free_blocks),
    }
    Folded(
        metrics.registry,
        counters={f"seedance_inference_{name}": one for name, one in counters.items()},
        gauges={f"seedance_inference_{name}": one for name, one in gauges.items()},
    )
    return serve_metrics(metrics.registry, settings.host, settings.metrics_port)
