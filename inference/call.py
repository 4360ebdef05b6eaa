"""One gRPC call from the instance's side: its streams, what it asks and what it is sent."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from inference.engine.messages import (
    CallOutput,
    Cancel,
    Command,
    Credit,
    Done,
    Failed,
    Open,
    Pressure,
    StreamKey,
)
from inference.outbox import Outbox
from seedance.protocol.errors import SeedanceError

__all__ = ["Call", "Preparing"]

# Instructions for a stream that ended a moment ago cross its end on the wire and are ignored; so
# long are ended streams remembered.
ENDED_REMEMBERED_MAX = 4_096


@dataclass(slots=True)
class Preparing:
    """What arrived for a stream while its request was still being tokenized."""

    credit: int = 0
    cancelled: bool = False

    def commands(self, opened: Open) -> list[Command]:
        """The opening and what has to follow it."""
        commands: list[Command] = [opened]
        if self.credit:
            commands.append(Credit(opened.stream, self.credit))
        if self.cancelled:
            commands.append(Cancel(opened.stream))
        return commands


@dataclass(slots=True, eq=False)
class Call:
    """State of one call; only the event loop touches it, but for the outbox.

    `trusted`: the caller showed the mesh's secret. `live` are streams whose end has not been
    written. `fault`: why the whole call is refused. `ready` wakes the writer, `room` the reader.
    `told` is the pressure that it knows of.
    """

    id: int
    trusted: bool
    outbox: Outbox = field(default_factory=Outbox)
    live: set[int] = field(default_factory=set)
    preparing: dict[int, Preparing] = field(default_factory=dict)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    held: bool = False
    reading: bool = True
    fault: str | None = None
    told: Pressure | None = None
    _ended: OrderedDict[int, None] = field(default_factory=OrderedDict)

    @property
    def complete(self) -> bool:
        """Nothing can follow: the caller asks no more, and every stream has ended."""
        return self.fault is not None or not (self.reading or self.live)

    def key(self, stream: int) -> StreamKey:
        """The engine's name for one of the call's streams."""
        return StreamKey(self.id, stream)

    def knows(self, stream: int) -> bool:
        """Whether the stream lives here, or did a moment ago."""
        return stream in self.live or stream in self._ended

    def refuse(self, stream: int, error: SeedanceError, *, final: bool) -> None:
        """Answer an instruction that goes no further; `final`: and its stream ends with it."""
        self.outbox.refuse(Failed(self.key(stream), error, final=final))
        self.ready.set()

    def written(self, output: CallOutput) -> None:
        """This is on the wire: streams that ended in it live no more."""
        for end in output.ends:
            stream = end.stream.stream
            if stream in self.live and (isinstance(end, Done) or end.final):
                self.live.discard(stream)
                self._ended[stream] = None
        while len(self._ended) > ENDED_REMEMBERED_MAX:
            self._ended.popitem(last=False)
        self.room.set()
