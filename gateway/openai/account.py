"""What one generation over HTTP is known by and what it cost: span, metrics, usage event."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import msgspec

from gateway.deps import GatewayDeps
from gateway.store.base import UsageEvent
from gateway.upstream.base import UpstreamAccepted
from mesh.telemetry.names import Attribute, Span
from seedance.protocol.frames import Usage
from seedance.protocol.request import GenerateRequest

__all__ = ["Account", "Caller"]

# An HTTP request is a session of one stream that nobody can resume.
_SESSION_PREFIX = "http-"
_STREAM = "0"
_KIND = "stream_finished"


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf: the tenant that pays, what the router's rule goes by, and the trace.

    `operation` is the semantic conventions' word: `chat` or `text_completion`.
    """

    tenant: str
    affinity: str
    operation: str
    canary: bool = False
    traceparent: str | None = None


class Account:
    """Opened with the generation; `close` writes everything down, once."""

    def __init__(self, deps: GatewayDeps, request: GenerateRequest, caller: Caller) -> None:
        self.session = _SESSION_PREFIX + secrets.token_hex(12)
        self.generation = f"{self.session}/{_STREAM}"
        self.usage = Usage()
        self._deps = deps
        self._tenant = caller.tenant
        self._model = request.model
        self._instance = ""
        self._taken = False
        self._started_s = deps.clock.monotonic()
        self._started_ms = deps.clock.wall_ms()
        self._first_text_s: float | None = None
        self._span = deps.tracing.start(
            Span.GENERATE,
            caller.traceparent,
            kind="server",
            attributes={
                Attribute.OPERATION: caller.operation,
                Attribute.PROVIDER: "seedance",
                Attribute.REQUEST_MODEL: request.model,
                Attribute.TEMPERATURE: request.sampling.temperature,
                Attribute.SESSION: self.session,
                Attribute.STREAM: _STREAM,
                Attribute.TENANT: caller.tenant,
            },
        )

    @property
    def traceparent(self) -> str:
        """What the instance's and metering's spans become children of."""
        return self._span.traceparent

    def accepted(self, accepted: UpstreamAccepted) -> None:
        """An instance took it; after a re-opening, another one."""
        self._taken = True
        self._model = accepted.model
        self._instance = accepted.instance
        self.usage = Usage(accepted.prompt_tokens, self.usage.cached_tokens)

    def text_sent(self) -> None:
        """Text is on its way to the client."""
        if self._first_text_s is None:
            self._first_text_s = self._deps.clock.monotonic()
            self._deps.metrics.ttft.observe(self._first_text_s - self._started_s)

    def computed(self, usage: Usage) -> None:
        """What the instance counted. Of it only the prompt is believed: see `close`."""
        self.usage = Usage(usage.prompt_tokens, usage.cached_tokens)

    def close(self, framed_tokens: int, reason: str) -> None:
        """It is over: `framed_tokens` reached the answer and are billed (§4.9).

        `reason`: a finish reason, or `error`. What no instance took costs nothing.
        """
        self._deps.metrics.requests.labels("http", reason).inc()
        self._span.set(
            {
                Attribute.RESPONSE_MODEL: self._model,
                Attribute.INSTANCE: self._instance,
                Attribute.FINISH_REASONS: (reason,),
                Attribute.INPUT_TOKENS: self.usage.prompt_tokens,
                Attribute.OUTPUT_TOKENS: framed_tokens,
            }
        )
        self._span.end(error="error" if reason == "error" else None)
        if self._taken:
            self._deps.usage.add(self._event(framed_tokens, reason))

    def _event(self, framed_tokens: int, reason: str) -> UsageEvent:
        event_id = f"{self.generation}/{_KIND}"
        payload = {
            "v": 1,
            "id": event_id,
            "kind": _KIND,
            "tenant": self._tenant,
            "session": self.session,
            "stream": _STREAM,
            "model": self._model,
            "instance": self._instance,
            "finish_reason": reason,
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "completion_tokens": framed_tokens,
            "started_ms": self._started_ms,
            # From the monotonic clock, lest a step of the wall clock makes it end before it began.
            "ended_ms": self._started_ms
            + round((self._deps.clock.monotonic() - self._started_s) * 1000),
            "traceparent": self.traceparent,
        }
        return UsageEvent(event_id, msgspec.json.encode(payload))
