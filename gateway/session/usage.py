"""Usage events on their way to metering: kept until the store has them (§4.9, the design §6)."""

from __future__ import annotations

import json
import logging
from collections import deque
from dataclasses import asdict, dataclass

from gateway.store.base import SessionStore, UsageEvent

__all__ = ["USAGE_KEPT_MAX", "StreamFinished", "UsageOutbox"]

log = logging.getLogger("gateway")

# With the store away for long, memory is bounded by this; the oldest events are given up, loudly.
USAGE_KEPT_MAX = 100_000
USAGE_BATCH_MAX = 500


@dataclass(frozen=True, slots=True)
class StreamFinished:
    """What one stream cost. Times are Unix milliseconds."""

    tenant: str
    session: str
    stream: str
    model: str
    instance: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    started_ms: int
    ended_ms: int
    traceparent: str

    def event(self, *, reused: bool = False) -> UsageEvent:
        """The event; its id is the stream's identity, so that no recovery bills it twice.

        `reused`: an older stream of the session may have had the id. When this one began tells them apart.
        """
        kind = "stream_finished"
        stream = f"{self.stream}/{self.started_ms}" if reused else self.stream
        name = f"{self.session}/{stream}/{kind}"
        payload = {"v": 1, "id": name, "kind": kind, **asdict(self)}
        return UsageEvent(name, json.dumps(payload, separators=(",", ":")).encode())


class UsageOutbox:
    """Takes events without waiting; `flush` writes them in order."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._events: deque[UsageEvent] = deque()
        self.lost = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: UsageEvent) -> None:
        """Keep an event until the store has it."""
        if len(self._events) >= USAGE_KEPT_MAX:
            self._events.popleft()
            self.lost += 1
            log.error("a usage event is lost: the store has been away for too long")
        self._events.append(event)

    async def flush(self) -> None:
        """Write what there is. Raises `StoreUnavailableError`; what was not written is kept.

        An event that is written twice, because its answer was lost, is taken once by its id.
        """
        while self._events:
            batch = [self._events[i] for i in range(min(USAGE_BATCH_MAX, len(self._events)))]
            await self._store.add_usage(batch)
            for event in batch:
                if self._events and self._events[0] is event:
                    self._events.popleft()
