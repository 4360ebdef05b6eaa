"""An OpenTelemetry collector that keeps what it is sent: the real OTLP service, over gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc

__all__ = ["CollectedSpan", "Collector", "collector"]


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """One exported span."""

    hop: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]


def _attributes(pairs: object) -> dict[str, str]:
    return {p.key: p.value.string_value or str(p.value.int_value) for p in pairs}


class Collector(pb_grpc.TraceServiceServicer):
    """Keeps spans in the order they arrive."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self.endpoint = ""

    def Export(  # noqa: N802 - the service's name
        self, request: pb.ExportTraceServiceRequest, _context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        """Take a batch."""
        for resource in request.resource_spans:
            hop = _attributes(resource.resource.attributes)["service.name"]
            self.spans += [
                CollectedSpan(
                    hop,
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    _attributes(span.attributes),
                )
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        return pb.ExportTraceServiceResponse()

    def of_trace(self, trace_id: str) -> list[CollectedSpan]:
        """The spans of one trace."""
        return [span for span in self.spans if span.trace_id == trace_id]


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    """Run one on a free port."""
    kept = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    pb_grpc.add_TraceServiceServicer_to_server(kept, server)
    kept.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield kept
    finally:
        server.stop(None).wait()
