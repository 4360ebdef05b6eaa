"""Every Prometheus instrument of the mesh; no instrument is made elsewhere.

Counters on the path of a token are plain integers of their owners, folded in when somebody scrapes
(`Folded`), because a labelled `inc()` costs more than the token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mesh.settings import exit_with

__all__ = [
    "CONTENT_TYPE",
    "Folded",
    "GatewayMetrics",
    "InferenceMetrics",
    "MeteringMetrics",
    "render",
    "serve_metrics",
]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Folded(Collector):
    """Instruments whose values are read from their owners at scrape time.

    `counters` and `gauges` map a metric's name to (help, function that returns its value now).
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        counters: dict[str, tuple[str, Callable[[], float]]] | None = None,
        gauges: dict[str, tuple[str, Callable[[], float]]] | None = None,
    ) -> None:
        self._counters = counters or {}
        self._gauges = gauges or {}
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The values now."""
        for name, (text, read) in self._counters.items():
            yield CounterMetricFamily(name, text, value=read())
        for name, (text, read) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value=read())


class GatewayMetrics:
    """Instruments of a gateway that are touched once per request or connection."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "seedance_gateway_requests",
            "Generations asked for, by way in and outcome.",
            ("way", "outcome"),
            registry=self.registry,
        )
        self.rejected = Counter(
            "seedance_gateway_rejected",
            "Requests refused at the edge, by error code.",
            ("code",),
            registry=self.registry,
        )
        self.ttft = Histogram(
            "seedance_gateway_ttft_seconds",
            "From the client's frame to the first token frame.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.breakers = Counter(
            "seedance_gateway_breaker_changes",
            "Changes of instances' breakers, by instance and new state.",
            ("instance", "state"),
            registry=self.registry,
        )
        self.resumes = Counter(
            "seedance_gateway_resumes",
            "Resumes, by outcome.",
            ("outcome",),
            registry=self.registry,
        )
        self.budget_cuts = Counter(
            "seedance_gateway_budget_cuts",
            "Streams that a budget ended, by error code.",
            ("code",),
            registry=self.registry,
        )
        self.soft_budgets = Counter(
            "seedance_gateway_soft_budgets_reached",
            "Soft budgets that were reached, by tenant.",
            ("tenant",),
            registry=self.registry,
        )


class InferenceMetrics:
    """Instruments of an instance that are touched once per generation."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.finished = Counter(
            "seedance_inference_finished",
            "Generations ended, by finish reason or error code.",
            ("reason",),
            registry=self.registry,
        )
        self.queue = Histogram(
            "seedance_inference_queue_seconds",
            "From arrival to the first step.",
            buckets=_SECONDS,
            registry=self.registry,
        )


class MeteringMetrics:
    """Instruments of metering, touched once per event."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter(
            "seedance_metering_events",
            "Usage events read, by outcome: recorded, duplicate, refused.",
            ("outcome",),
            registry=self.registry,
        )
        self.conserved = Counter(
            "seedance_metering_conserved_streams",
            "Streams whose books of tokens are equal, different, or untold by the instance.",
            ("verdict",),
            registry=self.registry,
        )
        self.different_days = Gauge(
            "seedance_metering_different_days",
            "Days of the ledger on which tokens are not conserved, at the last look.",
            registry=self.registry,
        )


def render(registry: CollectorRegistry) -> bytes:
    """The registry in Prometheus' text format."""
    return generate_latest(registry)


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> Callable[[], None]:
    """Answer Prometheus on a port of its own, in a thread, until the returned function is called.

    A port in use ends the process with one line that says so.
    """
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError:
        exit_with(
            f"cannot listen on {host}:{port}: is the port in use? "
            "Choose another with --metrics-port"
        )

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
