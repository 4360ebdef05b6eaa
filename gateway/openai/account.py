"""What one request for text over HTTP is known by and what it cost: span, metrics, usage event."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.deps import GatewayDeps
from gateway.metering.events import Attempt, StreamFinished
from gateway.metering.stream import Counts, StreamBooks, discarded_of
from gateway.upstream.base import UpstreamAccepted
from mesh.telemetry.names import Attribute, Span
from mesh.telemetry.tracing import SpanHandle
from seedance.protocol.errors import ErrorCode
from seedance.protocol.frames import Usage
from seedance.protocol.receipt import TextDigest
from seedance.protocol.request import GenerateRequest

__all__ = ["Account", "Caller"]

# An HTTP request is a session that nobody can resume, with a stream for each answer; the bill is one.
_SESSION_PREFIX = "http-"
_STREAM = "0"
_FAILURES = frozenset(code.value for code in ErrorCode)
_CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf: the tenant that pays, what the router's rule goes by, and the trace.

    `key` is the API key's name, for budgets. `operation` is the semantic conventions' word: `chat` or
    `text_completion`. `run` names the run of a request that may be repeated, so that it is billed once;
    empty: a name is made.
    """

    tenant: str
    affinity: str
    operation: str
    canary: bool = False
    traceparent: str | None = None
    key: str = ""
    run: str = ""


class Account:
    """Opened with what is asked, if its tenant may; written down when all generations are closed, once.

    There are `choices` generations for each of `requests`, in that order. A prompt is counted once,
    whatever the number of its choices: as its first one found it (CASES 89, 90). Raises `SeedanceError`
    when the tenant is over a limit.
    """

    def __init__(
        self,
        deps: GatewayDeps,
        requests: Sequence[GenerateRequest],
        caller: Caller,
        choices: int = 1,
    ) -> None:
        request, *more = requests
        self._choices = choices
        self._permit = deps.tenants.admit(caller.tenant, request, choices * len(requests), more)
        self.session = _SESSION_PREFIX + (caller.run or secrets.token_hex(12))
        self._prompts = [Usage()] * len(requests)
        # What is noted of each generation for the bill while it runs.
        self.books: defaultdict[int, StreamBooks] = defaultdict(StreamBooks)
        self._closed: list[Counts] = []
        self._attempts: list[Attempt] = []
        self._deps = deps
        self.caller = caller
        self._model = request.model
        self._instance = ""
        self._started_s = deps.clock.monotonic()
        self.started_ms = deps.clock.wall_ms()
        self._first_text_s: float | None = None
        self._span = self._begin_span(request, caller)

    @property
    def traceparent(self) -> str:
        """What the instance's and metering's spans become children of."""
        return self._span.traceparent

    def generation(self, index: int) -> str:
        """The identity of one generation at the instances."""
        return f"{self.session}/{index}"

    def prompt(self, index: int) -> Usage:
        """What the prompt of one generation is billed; its completion is not counted here."""
        return self._prompts[index // self._choices]

    def receipt(self, text: TextDigest, usage: Usage) -> dict[str, Any] | None:
        """What the mesh signs of the text and of what is billed, by the bill's own name; None: it signs nothing."""
        if self._deps.receipts is None:
            return None
        return self._deps.receipts.of_session(self.session)(_STREAM, text, usage)

    def accepted(self, index: int, accepted: UpstreamAccepted) -> None:
        """An instance took it; after a re-opening, another one perhaps."""
        self._model = accepted.model
        self._instance = accepted.instance
        known = self.prompt(index)
        tokens = accepted.prompt_tokens or known.prompt_tokens
        self._prompts[index // self._choices] = Usage(tokens, known.cached_tokens)

    def text_sent(self) -> None:
        """Text is on its way to the client."""
        if self._first_text_s is None:
            self._first_text_s = self._deps.clock.monotonic()
            self._deps.metrics.ttft.observe(self._first_text_s - self._started_s)

    def computed(self, index: int, usage: Usage) -> None:
        """What the instance counted. Of it only the prompt is believed: see `close`."""
        prompt, choice = divmod(index, self._choices)
        if choice == 0:
            prompt_tokens = usage.prompt_tokens or self._prompts[prompt].prompt_tokens
            self._prompts[prompt] = Usage(prompt_tokens, usage.cached_tokens)

    def close(self, counts: Counts, attempts: Sequence[Attempt]) -> None:
        """A generation is over: the framed tokens reached the answer and are billed (§4.9).

        `attempts` divide them among the instances that made them; a generation that no instance took
        has none, and costs nothing.
        """
        self._closed.append(counts)
        self._attempts += attempts
        if len(self._closed) == self._choices * len(self._prompts):
            self._write()

    def _write(self) -> None:
        self._permit.close()
        # One generation that fails fails the request, and the others are cancelled for it.
        reasons = [counts.reason for counts in self._closed]
        failures = [r for r in reasons if r in _FAILURES]
        cancelled = [r for r in reasons if r == _CANCELLED]
        reason = next(iter(failures or cancelled or reasons))
        self._deps.metrics.requests.labels("http", reason).inc()
        self._span.set(
            {
                Attribute.RESPONSE_MODEL: self._model,
                Attribute.INSTANCE: self._instance,
                Attribute.FINISH_REASONS: (reason,),
                Attribute.INPUT_TOKENS: sum(usage.prompt_tokens for usage in self._prompts),
                Attribute.OUTPUT_TOKENS: self._framed,
            }
        )
        self._span.end(error=reason if failures else None)
        if self._instance:
            self._deps.usage.add(self._bill(reason).event())

    @property
    def _framed(self) -> int:
        return sum(counts.framed for counts in self._closed)

    def _bill(self, reason: str) -> StreamFinished:
        # By the monotonic clock, lest a step of the wall clock makes it end before it began.
        took_ms = round((self._deps.clock.monotonic() - self._started_s) * 1000)
        return StreamFinished(
            tenant=self.caller.tenant,
            session=self.session,
            stream=_STREAM,
            model=self._model,
            instance=self._instance,
            finish_reason=reason,
            prompt_tokens=sum(usage.prompt_tokens for usage in self._prompts),
            cached_tokens=sum(usage.cached_tokens for usage in self._prompts),
            completion_tokens=self._framed,
            started_ms=self.started_ms,
            ended_ms=self.started_ms + took_ms,
            traceparent=self.traceparent,
            computed_tokens=_sum_if_told(counts.computed for counts in self._closed),
            discarded_tokens=sum(map(discarded_of, self._closed)),
            attempts=_by_instance(self._attempts),
            gateway=self._deps.usage.gateway,
            key=self.caller.key,
        )

    def _begin_span(self, request: GenerateRequest, caller: Caller) -> SpanHandle:
        attributes: dict[Attribute, str | int | float] = {
            Attribute.OPERATION: caller.operation,
            Attribute.PROVIDER: "seedance",
            Attribute.REQUEST_MODEL: request.model,
            Attribute.TEMPERATURE: request.sampling.temperature,
            Attribute.TENANT: caller.tenant,
            Attribute.SESSION: self.session,
            Attribute.STREAM: _STREAM,
        }
        if request.max_tokens is not None:
            attributes[Attribute.MAX_TOKENS] = request.max_tokens
        return self._deps.tracing.start(
            Span.GENERATE, caller.traceparent, kind="server", attributes=attributes
        )


def _sum_if_told(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _by_instance(attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """One attempt for each model and instance; empty when there was only one."""
    sums: dict[tuple[str, str], int] = {}
    for attempt in attempts:
        who = (attempt.model, attempt.instance)
        sums[who] = sums.get(who, 0) + attempt.completion_tokens
    if len(sums) == 1:
        return ()
    return tuple(Attempt(*who, tokens) for who, tokens in sums.items())
