"""Spans without ceremony: opened per generation, never per token.

The context travels as a W3C `traceparent` string, because it crosses a multiplexed call inside the
`open` frame and the usage event inside the store. Without a collector nothing is exported, yet
every generation has a trace id that its `accepted` frame names.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

import seedance
from mesh.telemetry.names import Attribute, Span

__all__ = ["SpanHandle", "Tracing", "valid_traceparent"]

_PROPAGATOR = TraceContextTextMapPropagator()
_IDS = RandomIdGenerator()
_KINDS = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "consumer": SpanKind.CONSUMER,
}
EXPORT_TIMEOUT_S = 2
QUEUE_SPANS_MAX = 8_192
TRACEPARENT_LENGTH = 55

Attributes = Mapping[Attribute, AttributeValue]


def _read(traceparent: str) -> trace.SpanContext:
    context = _PROPAGATOR.extract({"traceparent": traceparent})
    return trace.get_current_span(context).get_span_context()


_known = lru_cache(maxsize=1024)(_read)  # a request's spans all ask for the same few


def _parent(traceparent: str | None) -> trace.SpanContext:
    text = traceparent or ""
    # What is longer than ours are comes from a client, and as long as it likes: it is not kept.
    return _read(text) if len(text) > TRACEPARENT_LENGTH else _known(text)


def valid_traceparent(traceparent: str | None) -> bool:
    """Whether the string is a W3C trace context (https://www.w3.org/TR/trace-context/)."""
    return _parent(traceparent).is_valid


class SpanHandle:
    """One open span. `traceparent` is what its children are given."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent = (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        )

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        if self._span.is_recording():
            for name, value in attributes.items():
                self._span.set_attribute(name.value, value)

    def end(self, *, error: str | None = None, end_ns: int | None = None) -> None:
        """End it; `error` is a code of the contract's table."""
        if error is not None:
            self._span.set_attribute(Attribute.ERROR_TYPE.value, error)
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(end_ns)


class Tracing:
    """A process's tracers, one per hop that it reports.

    `endpoint` empty exports nothing. `ratio` is the share sampled when no parent has decided.
    `processor` replaces the exporter (tests).
    """

    def __init__(
        self,
        service: str,
        instance_id: str,
        *,
        endpoint: str = "",
        ratio: float = 1.0,
        processor: SpanProcessor | None = None,
    ) -> None:
        self._service = service
        self._instance_id = instance_id
        self._sampler = TraceIdRatioBased(ratio)
        if processor is None and endpoint:
            # A fifth of what a router imports, and few processes export.
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=EXPORT_TIMEOUT_S)
            processor = BatchSpanProcessor(exporter, max_queue_size=QUEUE_SPANS_MAX)
        self._processor = processor
        self._providers: dict[str, TracerProvider] = {}

    def _tracer(self, hop: str) -> trace.Tracer:
        provider = self._providers.get(hop)
        if provider is None:
            resource = Resource.create(
                {
                    "service.namespace": "seedance",
                    "service.name": hop,
                    "service.version": seedance.__version__,
                    "service.instance.id": self._instance_id,
                }
            )
            # What is not sampled does not come to it (`start`).
            provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
            if self._processor is not None:
                provider.add_span_processor(self._processor)
            self._providers[hop] = provider
        return provider.get_tracer(self._service, seedance.__version__)

    def _led_by(self, parent: trace.SpanContext) -> trace.SpanContext:
        """What a span's trace is, and whether it is sampled: its parent's word, or decided here and now."""
        if parent.is_valid:
            return parent
        trace_id = _IDS.generate_trace_id()
        decision = self._sampler.should_sample(None, trace_id, "").decision
        flags = trace.TraceFlags(decision is Decision.RECORD_AND_SAMPLE)
        return trace.SpanContext(trace_id, 0, is_remote=False, trace_flags=flags)

    def start(
        self,
        name: Span,
        parent: str | None = None,
        *,
        hop: str | None = None,
        kind: str = "internal",
        attributes: Attributes | None = None,
        start_ns: int | None = None,
        link: str | None = None,
    ) -> SpanHandle:
        """Open a span under `parent` (a traceparent; None or malformed: a new trace).

        `hop` is whose span it is (default: this service's); `kind` one of internal, server,
        client, consumer; `link` a traceparent that led here without being the parent.
        """
        leads = self._led_by(_parent(parent))
        if self._processor is None or not leads.trace_flags.sampled:
            # Nobody will see it: it has a name for others, at a third of what the SDK takes.
            unseen = trace.SpanContext(
                leads.trace_id,
                _IDS.generate_span_id(),
                is_remote=False,
                trace_flags=leads.trace_flags,
            )
            return SpanHandle(trace.NonRecordingSpan(unseen))
        context = trace.set_span_in_context(trace.NonRecordingSpan(leads))
        links = [Link(_parent(link))] if link and valid_traceparent(link) else None
        span = self._tracer(hop or self._service).start_span(
            name.value,
            context=context,
            kind=_KINDS[kind],
            attributes={k.value: v for k, v in (attributes or {}).items()},
            links=links,
            start_time=start_ns,
        )
        return SpanHandle(span)

    def record(
        self,
        name: Span,
        parent: str,
        start_ns: int,
        end_ns: int,
        *,
        hop: str | None = None,
        kind: str = "internal",
        attributes: Attributes | None = None,
    ) -> None:
        """Write down a span that is over; times are Unix nanoseconds."""
        if self._processor is None or not _parent(parent).trace_flags.sampled:
            return  # nobody will ever see it
        handle = self.start(
            name, parent, hop=hop, kind=kind, attributes=attributes, start_ns=start_ns
        )
        handle.end(end_ns=max(start_ns, end_ns))

    def close(self) -> None:
        """Export what is left, within a bound; a collector that is away must not delay an end."""
        if self._processor is not None:
            with suppress(Exception):  # the exporter may raise whatever its transport raises
                self._processor.force_flush(EXPORT_TIMEOUT_S * 1000)
                self._processor.shutdown()
