"""Traces and metrics of generations, made once for each, when it has ended."""

from __future__ import annotations

from inference.engine.messages import EndRecord
from mesh.clock import Clock
from mesh.telemetry.metrics import InferenceMetrics
from mesh.telemetry.names import Attribute, Span
from mesh.telemetry.tracing import Attributes, Tracing

__all__ = ["Reporter"]


class Reporter:
    """Writes down ended generations. `tracing` None: nobody collects traces."""

    def __init__(
        self,
        metrics: InferenceMetrics,
        tracing: Tracing | None,
        clock: Clock,
        *,
        instance: str,
        model: str,
    ) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._clock = clock
        self._instance = instance
        self._model = model

    def report(self, record: EndRecord) -> None:
        """One generation has ended."""
        reason = record.error.code if record.error else record.reason
        self._metrics.finished.labels(reason.value if reason else "").inc()
        self._metrics.queue.observe(record.marks.timing(self._clock.monotonic()).queue_ms / 1e3)
        if self._tracing is not None:
            self._trace(record, self._tracing)

    def _trace(self, record: EndRecord, tracing: Tracing) -> None:
        # The engine tells time by the monotonic clock, a collector by the wall's.
        wall_ns = self._clock.wall_ms() * 1_000_000
        zero_ns = wall_ns - int(self._clock.monotonic() * 1e9)

        def at(instant: float) -> int:
            return zero_ns + int(instant * 1e9)

        marks = record.marks
        end = marks.end or self._clock.monotonic()
        whole = tracing.start(
            Span.INFERENCE,
            record.traceparent or None,
            kind="server",
            attributes=self._attributes(record),
            start_ns=at(marks.arrival),
        )
        first_step = end if marks.first_step is None else marks.first_step
        prefilled = end if marks.prefilled is None else marks.prefilled
        parts = [(Span.QUEUE, marks.arrival, first_step)]
        if marks.first_step is not None:
            parts.append((Span.PREFILL, first_step, prefilled))
        if marks.prefilled is not None:
            parts.append((Span.DECODE, prefilled, end))
        for name, start, stop in parts:
            tracing.record(name, whole.traceparent, at(start), at(stop))
        whole.end(error=record.error.code.value if record.error else None, end_ns=at(end))

    def _attributes(self, record: EndRecord) -> Attributes:
        reason = record.reason
        return {
            Attribute.OPERATION: "chat",
            Attribute.PROVIDER: "seedance",
            Attribute.RESPONSE_MODEL: self._model,
            Attribute.INSTANCE: self._instance,
            Attribute.TENANT: record.tenant,
            Attribute.STREAM: record.generation,
            Attribute.INPUT_TOKENS: record.usage.prompt_tokens,
            Attribute.OUTPUT_TOKENS: record.usage.completion_tokens,
            Attribute.FINISH_REASONS: [reason.value] if reason else ["error"],
        }
