"""Usage as a busy month has it: events in disorder, some twice, and by plain arithmetic what they cost."""

from __future__ import annotations

import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from gateway.metering.events import (
    Attempt,
    ConnectionClosed,
    ConnectionOpened,
    RequestMade,
    StreamFinished,
    request_name,
    written,
)
from gateway.store.base import UsageEvent

__all__ = ["BIG_TENANT", "MONTH", "PLAN", "TENANTS", "Owed", "UsageLoad"]

MONTH = "2026-11"
_BEGIN_MS, _SPAN_MS = 1_793_491_200_000, 29 * 86_400_000
BIG_TENANT = "acme"
TENANTS = (BIG_TENANT, "globex", "initech", "umbrella")
# Nine of ten events are one tenant's, whose invoice is the long one.
_WEIGHTS = (0.9, 0.04, 0.03, 0.03)
_MODELS = ("smol", "big", "huge")
_TWICE = 0.1
# An event comes up to so many events later than it happened.
_DISORDER = 4_096
_LINE_PLACES = Decimal("0.000001")

# Every way of charging at once; each line is rounded to a millionth.
PLAN = b"""\
format: 1
currency: CNY
time_zone: UTC
rounding: {mode: half_up, digits: 6}
default_plan: everything
plans:
  everything:
    - version: "1"
      since: 2020-01-01
      prices:
        tokens:
          - models: ["*"]
            input_per_1000: "0.08"
            cached_per_1000: "0.02"
            output_per_1000: "0.16"
        connection_time: {per_second: "0.0012"}
        concurrency:
          tiers:
            - {from: 1, to: 50, per_month: 299}
            - {from: 51, to: 200, per_month: 899}
            - {from: 201, per_month: 2999}
        requests: {per_request: "0.001"}
        time_bandwidth: {alpha_per_second: "0.0001", beta_per_byte: "0.000000002"}
"""


@dataclass
class Owed:
    """What one tenant used, by arithmetic that knows no ledger."""

    tokens: defaultdict[str, list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0] * 3)
    )
    named: set[str] = field(default_factory=set)
    requests: int = 0
    open_ms: int = 0
    bytes: int = 0
    weighed: Fraction = Fraction(0)
    ends: list[tuple[int, int]] = field(default_factory=list)

    def peak(self) -> int:
        """Most connections open at one moment; one that ends then makes room."""
        most = now = 0
        for _, step in sorted(self.ends):
            now += step
            most = max(most, now)
        return most

    def amounts(self) -> dict[str, Decimal]:
        """The amount of every line that the plan makes of it."""
        lines: dict[str, Fraction] = {}
        for model, (prompt, cached, output) in self.tokens.items():
            lines[f"Input, {model}"] = Fraction((prompt - cached) * 8, 100_000)
            lines[f"Cached input, {model}"] = Fraction(cached * 2, 100_000)
            lines[f"Output, {model}"] = Fraction(output * 16, 100_000)
        lines["Connections open"] = Fraction(self.open_ms * 12, 10**7)
        lines["Peak"] = Fraction(_fee(self.peak()))
        lines["Requests"] = Fraction(self.requests, 1_000)
        lines["Time connected"] = Fraction(self.open_ms, 10**7)
        lines["Bytes both ways"] = Fraction(self.bytes * 2, 10**9)
        lines["Bytes × average round trip"] = self.weighed * Fraction(4, 10**12)
        return {name: _rounded(exact) for name, exact in lines.items()}


def _fee(peak: int) -> int:
    return 299 if peak <= 50 else 899 if peak <= 200 else 2999  # noqa: PLR2004 - as `PLAN` has it


def _rounded(exact: Fraction) -> Decimal:
    """Half up to a millionth; no quantity here is negative."""
    return Decimal((exact.numerator * 10**6 * 2 + exact.denominator) // (exact.denominator * 2)) * (
        _LINE_PLACES
    )


_Maker = Callable[[], UsageEvent]


class UsageLoad:
    """`count` distinct events of all kinds; `owed` grows as they are made."""

    def __init__(self, count: int, seed: int, gateway: str) -> None:
        self.owed = {tenant: Owed() for tenant in TENANTS}
        self.tokens = 0
        # Requests that resend another one's idempotency id.
        self.resent = 0
        self._count = count
        self._random = random.Random(seed)  # noqa: S311 - a load, no secret
        self._gateway = gateway

    def __iter__(self) -> Iterator[UsageEvent]:
        """The events, in disorder, about a tenth of them a second time."""
        waiting: list[UsageEvent] = []
        for event in self._events():
            waiting.append(event)
            if len(waiting) > _DISORDER:
                yield from self._told(waiting)
        while waiting:
            yield from self._told(waiting)

    def _told(self, waiting: list[UsageEvent]) -> Iterator[UsageEvent]:
        place = self._random.randrange(len(waiting))
        event, waiting[place] = waiting[place], waiting[-1]
        if self._random.random() < _TWICE / (1 + _TWICE):
            waiting[-1] = event
        else:
            waiting.pop()
        yield event

    def _events(self) -> Iterator[UsageEvent]:
        made = 0
        while made < self._count:
            tenant = self._random.choices(TENANTS, _WEIGHTS)[0]
            at_ms = _BEGIN_MS + self._random.randrange(_SPAN_MS)
            pair = (
                self._connection(tenant, at_ms)
                if self._random.random() < 0.2  # noqa: PLR2004 - a fifth are connections
                else self._stream(tenant, at_ms)
            )
            for event in pair[: self._count - made]:
                made += 1
                yield event()

    def _stream(self, tenant: str, at_ms: int) -> list[_Maker]:
        roll, owed = self._random, self.owed[tenant]
        session, model = secrets.token_urlsafe(16), roll.choice(_MODELS)
        cached = roll.randrange(200)
        prompt, output = cached + roll.randrange(800), 1 + roll.randrange(199)
        # Now and then another model's instance made the first part.
        other, part = roll.choice(_MODELS), roll.randrange(output) if roll.random() < 0.05 else 0  # noqa: PLR2004
        name = f"order-{roll.randrange(10_000)}" if roll.random() < 0.05 else ""  # noqa: PLR2004

        def asked() -> UsageEvent:
            if name and name in owed.named:
                self.resent += 1
            else:
                owed.requests += 1
                owed.named.add(name)
            made = RequestMade(tenant, self._gateway, at_ms, "asked", name)
            return written(made, request_name(session, "a"))

        def finished() -> UsageEvent:
            self.tokens += output
            for model_of, counts in (
                (model, (prompt, cached, output - part)),
                (other, (0, 0, part)),
            ):
                if any(counts):
                    sums = owed.tokens[model_of]
                    sums[:] = [old + more for old, more in zip(sums, counts, strict=True)]
            attempts = (Attempt(other, "i-0", part), Attempt(model, "i-1", output - part))
            times = (at_ms, at_ms + roll.randrange(20_000))
            return StreamFinished(
                *(tenant, session, "a", model, "i-1", "stop", prompt, cached, output, *times, ""),
                computed_tokens=output + 1,
                discarded_tokens=1,
                acknowledged_tokens=output - 1,
                retained_tokens=1,
                attempts=attempts if part else (),
                gateway=self._gateway,
            ).event()

        return [asked, finished]

    def _connection(self, tenant: str, at_ms: int) -> list[_Maker]:
        roll, owed = self._random, self.owed[tenant]
        name = f"{self._gateway}/{secrets.token_hex(6)}"
        open_ms = roll.randrange(60_000)
        size_in, size_out = roll.randrange(10_000), roll.randrange(100_000)
        rtt_us = tuple(roll.randrange(200_000) for _ in range(roll.randrange(11)))

        def opened() -> UsageEvent:
            event = ConnectionOpened(tenant, self._gateway, at_ms, "token")
            return written(event, f"{name}/connection_opened")

        def closed() -> UsageEvent:
            owed.open_ms += open_ms
            owed.bytes += size_in + size_out
            if rtt_us:
                owed.weighed += Fraction((size_in + size_out) * sum(rtt_us), 1_000 * len(rtt_us))
            if open_ms:
                owed.ends += ((at_ms, 1), (at_ms + open_ms, -1))
            event = ConnectionClosed(
                *(tenant, self._gateway, at_ms, open_ms, 0, size_in, size_out, rtt_us)
            )
            return written(event, f"{name}/connection_closed")

        return [opened, closed]
