"""The usage streams' reader: a consumer group, so that several processes share the work.

There is a stream for each partition of the store, and a batch is of all of them. After the ledger's commit its events are marked as committed for the gateway that told them, and the
entry is deleted and acknowledged. A process that dies before leaves its entries pending;
whoever looks next claims them, and the ledger knows which of them it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

from redis.exceptions import RedisError, ResponseError

from mesh.clock import Clock
from mesh.store import USAGE_PAYLOAD_FIELD, Partitions, committed_key
from mesh.store_link import Command, Reply, StoreMisfitError, open_link
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
# Between two looks at streams that have nothing new.
POLL_S = 0.1
# An entry is claimed from a consumer that has not acknowledged it for this long. Too early does no
# harm: the ledger takes each event once.
CLAIM_IDLE_MS = 2_000
# How long marks wait for a gateway that does not come for them.
MARKS_TTL_S = 3_600
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 2.0
# What the server says when the stream or the group went away under us (FLUSHALL, a new server).
_GROUP_GONE = "NOGROUP"

_LOG = logging.getLogger("metering")

# Ids and payloads of a stream's entries.
Entries = list[tuple[bytes, bytes]]


class UsageConsumer:
    """Carries the usage streams into the ledger, for as long as `run` runs."""

    def __init__(
        self,
        redis_url: str,
        name: str,
        ledger: Ledger,
        *,
        partitions: Partitions,
        clock: Clock,
        tracing: Tracing,
        metrics: MeteringMetrics,
        conservation: Conservation,
    ) -> None:
        self._link = open_link(redis_url)
        self._partitions = partitions
        self._streams = [partitions.usage_stream(n) for n in range(partitions.count)]
        self._name = name
        self._ledger = ledger
        self._clock = clock
        self._tracing = tracing
        self._metrics = metrics
        self._conservation = conservation
        self._claim_at = 0.0
        # What was read and not acknowledged, because the ledger or the store was away.
        self._held: dict[int, Entries] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Read until `stop`. Store or ledger away: keep trying, with one line in the log.

        It ends between two batches, within `POLL_S` of idle streams.
        """
        backoff_s = 0.0
        while not stop.is_set():
            try:
                await self._ensure_group()
                while not stop.is_set():
                    if not await self._turn():
                        await _wait(stop, POLL_S)
                    if backoff_s:
                        _LOG.info("usage is read again")
                    backoff_s = 0.0
            except (RedisError, OSError, LedgerUnavailableError) as error:
                if not backoff_s:
                    why = error if isinstance(error, StoreMisfitError) else type(error).__name__
                    _LOG.warning("usage cannot be taken, trying again: %s", why)
                backoff_s = min(max(backoff_s * 2, BACKOFF_MIN_S), BACKOFF_MAX_S)
                await _wait(stop, backoff_s)

    async def close(self) -> None:
        """Give the connection back, after `run` has ended."""
        await self._link.close()

    async def _ensure_group(self) -> None:
        self._partitions.agreed(await self._link.ask(self._partitions.agreeing()))
        # From "0": events may be older than the group.
        replies = await self._link.exchange(
            [("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM") for stream in self._streams]
        )
        for reply in replies:
            if isinstance(reply, ResponseError) and not str(reply).startswith("BUSYGROUP"):
                raise reply

    async def _turn(self) -> bool:
        """Take a batch; whether there was one."""
        try:
            batch = self._held or await self._claimed() or await self._fresh()
        except ResponseError as error:
            if not str(error).startswith(_GROUP_GONE):
                raise
            await self._ensure_group()
            return False
        self._held = batch
        if batch:
            await self._take(batch)
            self._held = {}
        return bool(batch)

    async def _claimed(self) -> dict[int, Entries]:
        """Entries that a consumer left pending, by partition; looked for now and then."""
        now = self._clock.monotonic()
        if now < self._claim_at:
            return {}
        head, tail = (GROUP, self._name, CLAIM_IDLE_MS, "0-0"), ("COUNT", self._share)
        replies = await self._link.ask([("XAUTOCLAIM", s, *head, *tail) for s in self._streams])
        batch = _batch([entries for _, entries, *_ in replies])
        if not batch:
            self._claim_at = now + CLAIM_IDLE_MS / 1000
        return batch

    async def _fresh(self) -> dict[int, Entries]:
        head = ("XREADGROUP", "GROUP", GROUP, self._name, "COUNT", self._share, "STREAMS")
        replies = await self._link.ask([(*head, stream, ">") for stream in self._streams])
        # One stream was asked for by each: [[name, entries]].
        return _batch([reply[0][1] if reply else () for reply in replies])

    @property
    def _share(self) -> int:
        return max(1, BATCH_ENTRIES_MAX // len(self._streams))

    async def _take(self, batch: dict[int, Entries]) -> None:
        read_ms = self._clock.wall_ms()
        payloads = [payload for entries in batch.values() for _, payload in entries]
        outcome = await self._ledger.record(payloads)
        await self._acknowledge(batch, outcome)
        self._report(outcome, read_ms)

    async def _acknowledge(self, batch: dict[int, Entries], outcome: Outcome) -> None:
        """Say what the ledger has, and then delete it: who looks in between finds it twice, or once."""
        marks: defaultdict[str, list[str]] = defaultdict(list)
        for event in outcome.told:
            marks[event.gateway].append(event.id)
        marks.pop("", None)
        commands: list[Command] = []
        for gateway, names in marks.items():
            key = committed_key(gateway)
            commands += [("SADD", key, *names), ("EXPIRE", key, MARKS_TTL_S)]
        await self._link.ask(commands)
        commands.clear()
        for partition, entries in batch.items():
            stream, ids = self._streams[partition], [entry_id for entry_id, _ in entries]
            # Who dies between the two leaves a pending entry that is not there, and is dropped.
            commands += [("XDEL", stream, *ids), ("XACK", stream, GROUP, *ids)]
        await self._link.ask(commands)

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


def _batch(replies: Iterable[Sequence[Reply]]) -> dict[int, Entries]:
    """The entries of the streams that have some, in the order of the streams."""
    return {
        partition: [(entry[0], _payload(entry[1])) for entry in entries]
        for partition, entries in enumerate(replies)
        if entries
    }


def _payload(flat: Sequence[bytes]) -> bytes:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return fields.get(_PAYLOAD, b"")


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
