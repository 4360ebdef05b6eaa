"""Spans that nobody will see have names all the same: others may report what belongs to them."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mesh.telemetry.names import Span
from mesh.telemetry.tracing import Tracing

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = SAMPLED[:-2] + "00"


def _recorded(ratio: float) -> tuple[Tracing, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return Tracing("gateway", "g", ratio=ratio, processor=SimpleSpanProcessor(exporter)), exporter


@pytest.mark.parametrize("parent", [SAMPLED, UNSAMPLED])
def test_without_a_collector_a_span_hands_its_parents_word_on(parent: str) -> None:
    """Same trace, same decision, an id of its own."""
    _, trace, span, flags = Tracing("gateway", "g").start(Span.ROUTE, parent).traceparent.split("-")
    assert trace == parent.split("-")[1]
    assert flags == parent[-2:]
    assert span not in (parent.split("-")[2], "0" * 16)


@pytest.mark.parametrize(("ratio", "flags"), [(0.0, "00"), (1.0, "01")])
def test_without_a_collector_a_trace_begins_as_its_ratio_says(ratio: float, flags: str) -> None:
    """Whoever hears of it with a collector of its own records it, or does not."""
    tracing = Tracing("gateway", "g", ratio=ratio)
    names = {tracing.start(Span.GENERATE, parent).traceparent for parent in (None, "junk", "")}
    assert len({name.split("-")[1] for name in names}) == 3
    assert {name.split("-")[3] for name in names} == {flags}


def test_what_a_parent_did_not_sample_is_recorded_nowhere() -> None:
    """Neither a span that is opened nor one that is written down afterwards."""
    tracing, exporter = _recorded(1.0)
    handle = tracing.start(Span.GENERATE, UNSAMPLED)
    handle.end(error="internal")
    tracing.record(Span.ROUTE, UNSAMPLED, 1, 2)
    assert not exporter.get_finished_spans()
    assert handle.traceparent.endswith("-00")


def test_what_a_parent_sampled_is_recorded_whatever_the_ratio() -> None:
    """The ratio is for traces that begin here."""
    tracing, exporter = _recorded(0.0)
    tracing.start(Span.GENERATE, SAMPLED).end()
    tracing.record(Span.ROUTE, SAMPLED, 1, 2)
    tracing.start(Span.GENERATE).end()
    assert [span.name for span in exporter.get_finished_spans()] == ["chat", "route"]


def test_with_a_collector_a_trace_begins_as_its_ratio_says() -> None:
    """What is recorded is what the name says is recorded, children included: about the ratio's share."""
    tracing, exporter = _recorded(0.5)
    sampled = set()
    for _ in range(200):
        span = tracing.start(Span.GENERATE)
        tracing.start(Span.ROUTE, span.traceparent).end()
        span.end()
        _, trace, _, flags = span.traceparent.split("-")
        if int(flags, 16) & 1:
            sampled.add(int(trace, 16))
    recorded = [one.context.trace_id for one in exporter.get_finished_spans() if one.context]
    assert sorted(recorded) == sorted([*sampled, *sampled])
    assert 50 < len(sampled) < 150
