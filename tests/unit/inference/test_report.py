"""Spans and metrics of a generation."""

from __future__ import annotations

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inference.engine.answer import FinishReason
from inference.engine.desk import internal_error
from inference.engine.messages import EndRecord
from inference.engine.timing import Marks
from inference.report import Reporter
from mesh.telemetry.metrics import InferenceMetrics, render
from mesh.telemetry.tracing import Tracing
from seedance.protocol.errors import SeedanceError
from seedance.protocol.frames import Usage
from tests.support.engine_driver import FakeClock

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _record(marks: Marks, error: SeedanceError | None = None) -> EndRecord:
    reason = None if error else FinishReason.STOP
    return EndRecord("s/1", "acme", PARENT, Usage(7, 0, 3), marks, reason, error)


def _spans(record: EndRecord) -> dict[str, object]:
    exporter = InMemorySpanExporter()
    tracing = Tracing("inference", "i", processor=SimpleSpanProcessor(exporter))
    metrics = InferenceMetrics()
    Reporter(metrics, tracing, FakeClock(), instance="i", model="m").report(record)
    assert b"seedance_inference_finished_total{reason=" in render(metrics.registry)
    return {span.name: span for span in exporter.get_finished_spans()}


def test_one_trace_with_queue_prefill_and_decode() -> None:
    """All under the caller's span, with the instants that were measured."""
    spans = _spans(_record(Marks(90.0, 90.1, 90.2, 91.0, 92.0, 92.5, 92.6, 95.0)))
    assert set(spans) == {"inference", "queue", "prefill", "decode"}
    whole = spans["inference"]
    assert f"{whole.parent.span_id:016x}" == "b7ad6b7169203331"
    assert {f"{s.context.trace_id:032x}" for s in spans.values()} == {
        "0af7651916cd43dd8448eb211c80319c"
    }
    for name in ("queue", "prefill", "decode"):
        assert spans[name].parent.span_id == whole.context.span_id
    seconds = {n: round((s.end_time - s.start_time) / 1e9, 3) for n, s in spans.items()}
    assert seconds == {"inference": 5.0, "queue": 1.0, "prefill": 1.0, "decode": 3.0}
    assert whole.attributes["gen_ai.usage.output_tokens"] == 3
    assert whole.attributes["gen_ai.response.finish_reasons"] == ("stop",)


def test_what_never_ran_has_only_a_queue_span() -> None:
    """A failed generation says so by its code."""
    spans = _spans(_record(Marks(90.0, 90.1, 90.2, end=93.0), internal_error()))
    assert set(spans) == {"inference", "queue"}
    assert spans["inference"].attributes["error.type"] == "internal"
