"""Metering's consumer, ledger and lease keeper inside a test's loop, on a real store server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mesh.clock import SystemClock
from mesh.store import partitions_of
from mesh.telemetry.metrics import MeteringMetrics
from mesh.telemetry.tracing import Tracing
from metering.conservation import Conservation
from metering.consumer import UsageConsumer
from metering.leases import LeaseKeeper
from metering.ledger import Ledger
from metering.store.books import BookStore
from metering.store.sql import SqlStore

__all__ = ["RunningMetering", "running_metering"]


class RunningMetering:
    """A metering process's parts."""

    def __init__(self, redis_url: str, folder: Path, partitions: int) -> None:
        self.spans = InMemorySpanExporter()
        self.metrics = MeteringMetrics()
        self.store = SqlStore(f"sqlite:///{folder}/ledger.db")
        self.ledger = Ledger(self.store, SystemClock())
        self.books = BookStore(self.store.engine)
        self.conservation = Conservation(self.books, SystemClock(), self.metrics)
        self.leases = LeaseKeeper(redis_url, self.ledger, SystemClock())
        self.consumer = UsageConsumer(
            redis_url,
            "test",
            self.ledger,
            partitions=partitions_of(redis_url, partitions),
            clock=SystemClock(),
            tracing=Tracing("metering", "test", processor=SimpleSpanProcessor(self.spans)),
            metrics=self.metrics,
            conservation=self.conservation,
        )

    def count(self, outcome: str) -> float:
        """Events read so far, by outcome."""
        name = "seedance_metering_events_total"
        return self.metrics.registry.get_sample_value(name, {"outcome": outcome}) or 0

    def conserved(self, verdict: str) -> float:
        """Streams by what the comparison of their books said."""
        name = "seedance_metering_conserved_streams_total"
        return self.metrics.registry.get_sample_value(name, {"verdict": verdict}) or 0


@contextlib.asynccontextmanager
async def running_metering(
    redis_url: str, folder: Path, partitions: int = 0
) -> AsyncIterator[RunningMetering]:
    """Metering for the time of the block, with its ledger in `folder`."""
    metering = RunningMetering(redis_url, folder, partitions)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(metering.consumer.run(stop))
        tasks.create_task(metering.leases.run(stop))
        try:
            yield metering
        finally:
            stop.set()
    await metering.consumer.close()
    await metering.leases.close()
    metering.ledger.close()
