"""The usage stream's reader: a consumer group, so that several processes share the work.

After the ledger's commit an entry is acknowledged and deleted, and its events are marked as committed
for the gateway that told them, all at once. A process that dies before leaves its entries pending;
whoever looks next claims them, and the ledger knows which of them it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import cast

from redis.exceptions import RedisError, ResponseError

from mesh.clock import Clock
from mesh.store import USAGE_PAYLOAD_FIELD, USAGE_STREAM, committed_key, open_store
from mesh.telemetry.metrics import MeteringMetrics
from mesh.telemetry.names import Attribute, Span
from mesh.telemetry.tracing import Tracing
from metering.conservation import Conservation
from metering.event import UsageEvent
from metering.ledger import Ledger, LedgerUnavailableError, Outcome

__all__ = ["GROUP", "UsageConsumer"]

GROUP = "metering"
_PAYLOAD = USAGE_PAYLOAD_FIELD.encode()

# A batch is one transaction of the ledger, whose cost is for the most part that it is one.
BATCH_ENTRIES_MAX = 2_048
# Well under the store connection's time limit for a command.
BLOCK_MS = 500
# An entry is claimed from a consumer that has not acknowledged it for this long. Too early does no
# harm: the ledger takes each event once.
CLAIM_IDLE_MS = 2_000
# How long marks wait for a gateway that does not come for them.
MARKS_TTL_S = 3_600
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 2.0
# What the server says when the stream or the group went away under us (FLUSHALL, a new server).
_GROUP_GONE = ("NOGROUP", "UNBLOCKED")

_LOG = logging.getLogger("metering")

Entry = tuple[bytes, dict[bytes, bytes]]


class UsageConsumer:
    """Carries the usage stream into the ledger, for as long as `run` runs."""

    def __init__(
        self,
        redis_url: str,
        name: str,
        ledger: Ledger,
        *,
        clock: Clock,
        tracing: Tracing,
        metrics: MeteringMetrics,
        conservation: Conservation,
    ) -> None:
        self._redis = open_store(redis_url)
        self._name = name
        self._ledger = ledger
        self._clock = clock
        self._tracing = tracing
        self._metrics = metrics
        self._conservation = conservation
        self._claim_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Read until `stop`. Store or ledger away: keep trying, with one line in the log.

        It ends between two batches, within `BLOCK_MS` of an idle stream. Cancelling instead would
        not do: on Python 3.11 redis-py loses a cancellation that meets the sending of a command,
        since `asyncio.wait_for` does.
        """
        backoff_s = 0.0
        while not stop.is_set():
            try:
                await self._ensure_group()
                while not stop.is_set():
                    await self._turn()
                    if backoff_s:
                        _LOG.info("usage is read again")
                    backoff_s = 0.0
            except (RedisError, OSError, LedgerUnavailableError) as error:
                if not backoff_s:
                    _LOG.warning("usage cannot be taken, trying again: %s", type(error).__name__)
                backoff_s = min(max(backoff_s * 2, BACKOFF_MIN_S), BACKOFF_MAX_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(backoff_s):
                        await stop.wait()

    async def close(self) -> None:
        """Give the connection back, after `run` has ended."""
        await self._redis.aclose()

    async def _ensure_group(self) -> None:
        try:
            # From "0": events may be older than the group.
            await self._redis.xgroup_create(USAGE_STREAM, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _turn(self) -> None:
        try:
            entries = await self._claimed() or await self._fresh()
        except ResponseError as error:
            if not str(error).startswith(_GROUP_GONE):
                raise
            await self._ensure_group()
            return
        if entries:
            await self._take(entries)

    async def _claimed(self) -> Sequence[Entry]:
        """Entries that a consumer left pending; looked for now and then."""
        now = self._clock.monotonic()
        if now < self._claim_at:
            return ()
        _, entries, *_ = await self._redis.xautoclaim(
            USAGE_STREAM, GROUP, self._name, CLAIM_IDLE_MS, count=BATCH_ENTRIES_MAX
        )
        if not entries:
            self._claim_at = now + CLAIM_IDLE_MS / 1000
        return cast("Sequence[Entry]", entries)

    async def _fresh(self) -> Sequence[Entry]:
        streams = await self._redis.xreadgroup(
            GROUP, self._name, {USAGE_STREAM: ">"}, count=BATCH_ENTRIES_MAX, block=BLOCK_MS
        )
        # One stream was asked for: [[name, entries]].
        return cast("list[tuple[bytes, Sequence[Entry]]]", streams)[0][1] if streams else ()

    async def _take(self, entries: Sequence[Entry]) -> None:
        read_ms = self._clock.wall_ms()
        outcome = await self._ledger.record([fields.get(_PAYLOAD, b"") for _, fields in entries])
        await self._acknowledge([entry_id for entry_id, _ in entries], outcome)
        self._report(outcome, read_ms)

    async def _acknowledge(self, entries: Sequence[bytes], outcome: Outcome) -> None:
        marks: defaultdict[str, list[str]] = defaultdict(list)
        for event in outcome.told:
            marks[event.gateway].append(event.id)
        marks.pop("", None)
        async with self._redis.pipeline(transaction=True) as pipe:
            for gateway, names in marks.items():
                pipe.sadd(committed_key(gateway), *names)
                pipe.expire(committed_key(gateway), MARKS_TTL_S)
            pipe.xack(USAGE_STREAM, GROUP, *entries)
            pipe.xdel(USAGE_STREAM, *entries)
            await pipe.execute()

    def _report(self, outcome: Outcome, read_ms: int) -> None:
        count = self._metrics.events
        count.labels("recorded").inc(len(outcome.recorded))
        count.labels("duplicate").inc(outcome.duplicates)
        count.labels("refused").inc(len(outcome.refusals))
        for reason in outcome.refusals:
            _LOG.warning("a usage entry was refused and kept aside: %s", reason)
        self._conservation.check(outcome.recorded)
        for event in outcome.recorded:
            if isinstance(event, UsageEvent):
                self._record_span(event, read_ms)

    def _record_span(self, event: UsageEvent, read_ms: int) -> None:
        self._tracing.record(
            Span.METER,
            event.traceparent,
            read_ms * 1_000_000,
            self._clock.wall_ms() * 1_000_000,
            kind="consumer",
            attributes={
                Attribute.EVENT: event.id,
                Attribute.TENANT: event.tenant,
                Attribute.SESSION: event.session,
                Attribute.STREAM: event.stream,
                Attribute.RESPONSE_MODEL: event.model,
                Attribute.INPUT_TOKENS: event.prompt_tokens,
                Attribute.OUTPUT_TOKENS: event.completion_tokens,
            },
        )
