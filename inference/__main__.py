"""`python -m inference`: one instance, from its model to its last stream."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys

from prometheus_client import start_http_server

from inference.config import InferenceSettings, parse_arguments
from inference.engine.engine import Engine
from inference.engine.loop import EngineLoop
from inference.engine.runner import Preparer, Runner
from inference.intake import Intake
from inference.registration import Registration
from inference.report import Reporter
from inference.script import ScriptPreparer, ScriptRunner, script_info
from inference.service import SERVICE_NAME, Deliverer, InferenceService, add_to_server
from inference.wire import load_to_pb
from mesh.clock import SystemClock
from mesh.lifecycle import die_with_parent, run_service
from mesh.rpc.server import RpcServer
from mesh.settings import exit_with
from mesh.telemetry.logs import setup_logs
from mesh.telemetry.metrics import Folded, InferenceMetrics
from mesh.telemetry.tracing import Tracing
from seedance.v2 import router_pb2

__all__ = ["Instance", "main"]

# The engine's thread is plain Python between two runs of the model: the event loop must not wait
# Python's default 5 ms for its turn.
SWITCH_INTERVAL_S = 0.0005
DRAIN_LOOK_S = 0.05
CALLS_END_S = 0.5


def load_engine(settings: InferenceSettings) -> tuple[Runner, Preparer]:
    """The runner and preparer that the settings ask for; ends the process when there are none."""
    if settings.engine == "script":
        info = script_info(
            aliases=settings.alias_names,
            context_length=settings.context_length,
            block_size=settings.block_size,
            kv_blocks=settings.kv_blocks,
        )
        return ScriptRunner(info), ScriptPreparer()
    if settings.model is None:
        exit_with("no model: give its folder or GGUF file with --model, or --engine script")
    # torch takes seconds to import, and only this engine needs it.
    from inference.model.load import ModelLoadError, load_model

    try:
        return load_model(
            settings.model,
            name=settings.model_name or settings.model.stem,
            aliases=settings.alias_names,
            context_length=settings.context_length,
            block_size=settings.block_size,
            kv_blocks=settings.kv_blocks,
            kv_cache_gib=settings.kv_cache_gib,
            dtype=settings.dtype,
            threads=settings.threads,
            progress=None,
        )
    except ModelLoadError as error:
        exit_with(str(error))


class Instance:
    """One instance's parts, wired; `serve` runs it until it is asked to stop, then drains."""

    def __init__(
        self,
        settings: InferenceSettings,
        runner: Runner,
        preparer: Preparer,
        stop: asyncio.Event,
    ) -> None:
        clock = SystemClock()
        loop = asyncio.get_running_loop()
        self.crashed = False
        self._settings = settings
        self._stop = stop
        self._loop = loop
        self._tracing = _tracing(settings)
        self._core = Engine(runner, settings.limits(), clock)
        metrics = InferenceMetrics()
        reporter = Reporter(
            metrics,
            self._tracing,
            clock,
            instance=settings.instance_id,
            model=runner.info.name,
        )
        deliverer = Deliverer(loop, clock, reporter.report)
        self._engine = EngineLoop(self._core, deliverer.deliver, self._on_crash)
        self._intake = Intake(runner.info, preparer, self._engine, clock)
        self._service = InferenceService(
            instance=settings.instance_id,
            engine_name=settings.engine,
            secret=settings.mesh_secret.get_secret_value(),
            info=runner.info,
            engine=self._engine,
            intake=self._intake,
            deliverer=deliverer,
            clock=clock,
        )
        self._rpc = RpcServer([SERVICE_NAME])
        add_to_server(self._service, self._rpc.server)
        if settings.metrics_port is not None:
            _serve_metrics(settings, metrics, self._core)

    async def serve(self) -> None:
        """Serve until `stop`, then take nothing new and let streams end within the grace time."""
        settings = self._settings
        self._engine.start()
        port = await self._rpc.start(f"{settings.host}:{settings.port}")
        address = settings.advertise or f"{settings.host}:{port}"
        registration = self._registration(address)
        if settings.announce:
            sys.stdout.write(f"ready {address}\n")
            sys.stdout.flush()
        async with asyncio.TaskGroup() as tasks:
            renewals = tasks.create_task(registration.run()) if registration else None
            await self._stop.wait()
            self._intake.draining = True
            await self._rpc.health.enter_graceful_shutdown()
            if registration is not None:
                registration.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0 if self.crashed else settings.drain_grace_s):
                    while self._service.live_streams:  # noqa: ASYNC110 - looked at 20 times a second
                        await asyncio.sleep(DRAIN_LOOK_S)
            if renewals is not None:
                renewals.cancel()
        if registration is not None:
            await registration.leave()
        await self._rpc.drain(CALLS_END_S)
        self._engine.stop()
        self._intake.close()
        if self._tracing is not None:
            self._tracing.close()

    def _registration(self, address: str) -> Registration | None:
        settings, info = self._settings, self._core.runner.info
        if not settings.router:
            return None
        instance = router_pb2.Instance(
            id=settings.instance_id,
            address=address,
            models=[info.name, *info.aliases],
            instance_class=settings.instance_class,
            weight=settings.weight,
            start_id=secrets.token_hex(8),
            context_length=info.context_length,
        )
        return Registration(settings.router, instance, lambda: load_to_pb(self._engine.load))

    def _on_crash(self) -> None:
        self.crashed = True
        self._loop.call_soon_threadsafe(self._stop.set)


def _tracing(settings: InferenceSettings) -> Tracing | None:
    if not settings.otlp_endpoint:
        return None
    return Tracing(
        "inference",
        settings.instance_id,
        endpoint=settings.otlp_endpoint,
        ratio=settings.trace_ratio,
    )


def _serve_metrics(settings: InferenceSettings, metrics: InferenceMetrics, engine: Engine) -> None:
    Folded(
        metrics.registry,
        counters={
            "seedance_inference_tokens": ("Tokens chosen.", lambda: engine.token_count),
            "seedance_inference_preemptions": (
                "Sequences that lost their blocks to a more urgent one.",
                lambda: engine.scheduler.preemptions,
            ),
        },
        gauges={
            "seedance_inference_running": (
                "Sequences in the batch.",
                lambda: engine.load.running,
            ),
            "seedance_inference_waiting": (
                "Requests that wait.",
                lambda: engine.load.waiting,
            ),
            "seedance_inference_free_blocks": (
                "Free KV blocks.",
                lambda: engine.load.free_blocks,
            ),
        },
    )
    assert settings.metrics_port is not None  # noqa: S101
    try:
        start_http_server(settings.metrics_port, addr=settings.host, registry=metrics.registry)
    except OSError:
        exit_with(
            f"cannot listen on {settings.host}:{settings.metrics_port}: is the port in use? "
            "Choose another with --metrics-port"
        )


def main() -> None:
    """Run one instance; exit code 0 after a drain, 2 for misuse, 1 when the engine failed."""
    settings = parse_arguments()
    if settings.die_with_parent:
        die_with_parent()
    setup_logs(settings.log_level, as_json=settings.log_json)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    runner, preparer = load_engine(settings)
    crashed = False

    async def body(stop: asyncio.Event) -> None:
        nonlocal crashed
        instance = Instance(settings, runner, preparer, stop)
        await instance.serve()
        crashed = instance.crashed

    run_service(body)
    if crashed:
        sys.exit(1)


if __name__ == "__main__":
    main()
