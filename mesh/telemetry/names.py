"""Every span, attribute and metric that the mesh emits, by name, in one place.

Span and attribute names follow OpenTelemetry's semantic conventions for generative AI, RPC and
databases where they have a word; our own begin with `seedance.`.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["HOPS", "TRACE_EDGES", "Attribute", "Span"]

# service.name of each hop. The store speaks no OTLP and the router's rule runs inside the gateway:
# their spans are made where the work is seen, under the hop's own name (docs/adr/0004).
HOPS = ("gateway", "router", "inference", "store", "metering")


class Span(StrEnum):
    """Span names."""

    GENERATE = "chat"  # gateway, from the client's frame to its end
    ROUTE = "route"  # router's rule
    STORE_COMMIT = "commit"  # store, the commit that `accepted` waits for
    INFERENCE = "inference"  # instance, from open to end
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    METER = "meter"  # metering, the usage event's way into the ledger


class Attribute(StrEnum):
    """Attribute names."""

    OPERATION = "gen_ai.operation.name"
    PROVIDER = "gen_ai.provider.name"
    REQUEST_MODEL = "gen_ai.request.model"
    RESPONSE_MODEL = "gen_ai.response.model"
    FINISH_REASONS = "gen_ai.response.finish_reasons"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    MAX_TOKENS = "gen_ai.request.max_tokens"
    TEMPERATURE = "gen_ai.request.temperature"
    ERROR_TYPE = "error.type"
    DB_SYSTEM = "db.system.name"
    DB_OPERATION = "db.operation.name"
    SESSION = "seedance.session"
    STREAM = "seedance.stream"
    EPOCH = "seedance.epoch"
    TENANT = "seedance.tenant"
    INSTANCE = "seedance.instance"
    EVENT = "seedance.event"


# (parent hop, parent span, child hop, child span): the end-to-end test walks these.
TRACE_EDGES = (
    ("gateway", Span.GENERATE, "router", Span.ROUTE),
    ("gateway", Span.GENERATE, "store", Span.STORE_COMMIT),
    ("gateway", Span.GENERATE, "inference", Span.INFERENCE),
    ("inference", Span.INFERENCE, "inference", Span.QUEUE),
    ("inference", Span.INFERENCE, "inference", Span.PREFILL),
    ("inference", Span.INFERENCE, "inference", Span.DECODE),
    ("gateway", Span.GENERATE, "metering", Span.METER),
)
