"""Connections between processes: bytes in order, late, cut anywhere, held back, or refused.

Latency differs from connection to connection and from write to write, so what goes over two
connections overtakes each other; within one it does not. A connection that breaks loses what was on
its way from any byte on.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.simulation.loop import Host, current_host

__all__ = ["HIGH_BYTES", "End", "Network"]

# What fits into the wire and the receiver's kernel before a sender notices a slow reader.
CAPACITY_BYTES = 16 * 1024
HIGH_BYTES, LOW_BYTES = 16 * 1024, 4 * 1024
# How often somebody who dials a host that does not answer tries the next packet.
SYN_S = 0.1

_HEAD = struct.Struct(">IB")


def _ignore(*_: object) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class _Listener:
    host: Host
    on_connect: Callable[[End], None]


class End:
    """One process's end of a connection: whole messages in, whole messages out.

    `on_writable` hears of a full buffer and of its end. `total` is how many bytes were sent.
    """

    def __init__(self, network: Network, host: Host) -> None:
        self.host = host
        self.lost = False
        self.total = 0
        # When a piece of a message arrived that is not here in full yet.
        self.piece_at: float | None = None
        self.on_writable: Callable[[bool], None] = _ignore
        self.peer: End
        self._network = network
        self._dice = network.more_dice()
        self._on_message: Callable[[int, bytes], None] | None = None
        self._on_lost: Callable[[], None] = _ignore
        self._reading = True
        self._outgoing = bytearray()
        self._wire: deque[bytes | None] = deque()
        self._in_flight = 0
        self._last_at = 0.0
        self._doom: tuple[int, Callable[[], None] | None] | None = None
        self._flushing = self._full = self._closing = self._ended = False
        self._incoming = bytearray()
        self._held = 0
        self._eof = False
        self._waiting: list[asyncio.Future[None]] = []

    # ------------------------------------------------------------ out

    @property
    def buffered(self) -> int:
        """Bytes that have not left this process."""
        return len(self._outgoing)

    @property
    def open(self) -> bool:
        """Whether something may still be sent."""
        return not (self._closing or self._ended or self.lost)

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a message with what else leaves in this turn of the loop."""
        if not self.open:
            return
        self._outgoing += _HEAD.pack(len(payload), kind) + payload
        self._plan_flush()
        if len(self._outgoing) > HIGH_BYTES and not self._full:
            self._full = True
            self.host.soon(lambda: self.on_writable(False))

    def close(self) -> None:
        """End it in order: the peer hears all that was sent before."""
        self._closing = True
        self._plan_flush()

    async def room(self) -> None:
        """Wait until the buffer is not full."""
        while len(self._outgoing) > LOW_BYTES and self.open:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def doom(self, more_bytes: int, then: Callable[[], None] | None = None) -> None:
        """When so many more bytes have left, the connection breaks, or `then` happens."""
        self._doom = (more_bytes, then)

    def cut(self) -> None:
        """The connection breaks now: both directions lose their rest from some byte on."""
        self._lose_rest()
        self.peer._lose_rest()

    def vanish(self) -> None:
        """This end is gone without a word (its machine lost power)."""
        self._lose_rest(silent=True)
        self.lost = True

    def _lose_rest(self, *, silent: bool = False) -> None:
        if self._ended:
            return
        on_wire = sum(len(chunk) for chunk in self._wire if chunk)
        keep = self._dice.randint(0, on_wire)
        for index, chunk in enumerate(self._wire):
            self._wire[index] = (chunk or b"")[:keep]
            keep -= min(keep, len(chunk or b""))
        self._outgoing.clear()
        self._closing = True
        self._wake()
        if not silent:
            self._plan_flush()

    def _plan_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._network.soon(self.flush)

    def flush(self) -> None:
        """Let go on its way what may."""
        self._flushing = False
        if self._ended or self._network.blocked(self.host, self.peer.host):
            return
        room = CAPACITY_BYTES - self._in_flight
        chunk = bytes(self._outgoing[:room])
        del self._outgoing[:room]
        if chunk:
            self._carry(chunk)
        if self._closing and not self._outgoing and not self._ended:
            self._ended = True
            self._carry(None)
        self._wake()

    def _carry(self, chunk: bytes | None) -> None:
        if self._doom is not None and chunk is not None:
            more_bytes, then = self._doom
            self._doom = (more_bytes - len(chunk), then)
            if len(chunk) >= more_bytes:
                self._doom = None
                chunk = chunk if then else chunk[:more_bytes]
                self._network.soon(then or self.cut)
        size = len(chunk or b"")
        self.total += size
        self._in_flight += size
        self._wire.append(chunk)
        self._last_at = max(self._last_at, self._network.arrival(self._dice))
        self.peer.host.at(self._last_at, self.peer._arrive)

    def _wake(self) -> None:
        if self._full and len(self._outgoing) <= LOW_BYTES:
            self._full = False
            if self.open:
                self.host.soon(lambda: self.on_writable(True))
        if len(self._outgoing) <= LOW_BYTES or not self.open:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    # ------------------------------------------------------------ in

    def hear(self, on_message: Callable[[int, bytes], None], on_lost: Callable[[], None]) -> None:
        """Who hears what arrives, and of the end."""
        self._on_message, self._on_lost = on_message, on_lost
        self._drain()

    def reading(self, on: bool) -> None:
        """Stop reading, or go on."""
        self._reading = on
        if on:
            self._drain()

    def _arrive(self) -> None:
        chunk = self.peer._wire.popleft()
        if chunk is None:
            self._eof = True
        else:
            self._incoming += chunk
            self._held += len(chunk)
        self._drain()

    def _drain(self) -> None:
        while self._reading and self._on_message is not None and not self.lost:
            if self._held:
                self.peer._in_flight -= self._held
                self._held = 0
                self.peer._plan_flush()
            message = self._next()
            if message is None:
                if self._incoming:
                    self.piece_at = asyncio.get_running_loop().time()
                if self._eof:
                    self._lose()
                return
            self._on_message(*message)

    def _next(self) -> tuple[int, bytes] | None:
        if len(self._incoming) < _HEAD.size:
            return None
        size, kind = _HEAD.unpack_from(self._incoming)
        end = _HEAD.size + size
        if len(self._incoming) < end:
            return None
        payload = bytes(self._incoming[_HEAD.size : end])
        del self._incoming[:end]
        return kind, payload

    def _lose(self) -> None:
        self.lost = True
        self._outgoing.clear()
        self._wake()
        self._network.forget(self)
        if not self._ended:
            self.close()
        self._on_lost()


class Network:
    """All connections; `seed` decides how long things take and where they break."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"network {seed}")
        self._seed = seed
        self._made = 0
        self.ends: dict[End, None] = {}
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[str, _Listener] = {}
        self._blocked: set[frozenset[str]] = set()
        self._dark: set[str] = set()
        self._shut = False

    def shut(self) -> None:
        """The run is over: nothing passes any more."""
        self._shut = True

    def soon(self, what: Callable[[], None]) -> None:
        """The network itself does something; no process is needed for it."""
        self._loop.call_soon(what)

    def more_dice(self) -> random.Random:
        """Dice for one connection: what happens on it does not depend on what others do."""
        self._made += 1
        return random.Random(f"{self._seed} {self._made}")

    def arrival(self, dice: random.Random | None = None) -> float:
        """When something sent now arrives: mostly soon, now and then late."""
        dice = dice or self.dice
        chance = dice.random()
        delay = 0.0003 + 0.002 * chance if chance < 0.97 else 0.02 * dice.random() + 0.002
        return self._loop.time() + delay

    # ------------------------------------------------------------ connecting

    def listen(self, address: str, host: Host, on_connect: Callable[[End], None]) -> None:
        """Take connections; whatever still believed in a former process there learns better."""
        self._dark.discard(host.name)
        self._listeners[address] = _Listener(host, on_connect)
        for end in list(self.ends):
            if end.peer.host.name == host.name and end.peer.host is not host and not end.lost:
                end.peer._plan_flush()

    def unlisten(self, address: str) -> None:
        """Take no more."""
        self._listeners.pop(address, None)

    async def dial(self, address: str) -> End:
        """A connection from the process that is running. Raises `OSError` when it is refused."""
        if self._shut:
            raise ConnectionRefusedError
        me = current_host()
        await asyncio.sleep(self.arrival() - self._loop.time())
        name = address.partition(":")[0]
        while name in self._dark or frozenset((me.name, name)) in self._blocked:  # noqa: ASYNC110 - as TCP does
            await asyncio.sleep(SYN_S)
        listener = self._listeners.get(address)
        if listener is None or not listener.host.alive:
            raise ConnectionRefusedError
        mine, theirs = End(self, me), End(self, listener.host)
        mine.peer, theirs.peer = theirs, mine
        self.ends |= {mine: None, theirs: None}
        listener.host.at(self.arrival(), lambda: listener.on_connect(theirs))
        try:
            await asyncio.sleep(2 * (self.arrival() - self._loop.time()))
        except asyncio.CancelledError:
            mine.close()
            raise
        return mine

    def forget(self, end: End) -> None:
        """An end that is over."""
        self.ends.pop(end, None)

    # ------------------------------------------------------------ what breaks

    def blocked(self, one: Host, other: Host) -> bool:
        """Whether nothing passes between the two now."""
        return self._shut or frozenset((one.name, other.name)) in self._blocked

    def part(self, one: str, other: str) -> None:
        """Nothing passes between two processes until `join`; nobody is told."""
        self._blocked.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> None:
        """It passes again, with all that was held back."""
        self._blocked.discard(frozenset((one, other)))
        for end in list(self.ends):
            # A process that has ended meanwhile: its kernel goes on saying so.
            ended = [end.peer] if end.peer.lost and end.peer.host.name not in self._dark else []
            for each in (end, *ended):
                with suppress(AttributeError):
                    each.flush()

    def died(self, host: Host, *, silent: bool) -> None:
        """A process was killed: its kernel says so, unless the machine went with it (`silent`)."""
        if silent:
            self._dark.add(host.name)
        for end in [e for e in self.ends if e.host is host]:
            if silent:
                end.vanish()
            else:
                end._lose_rest()
                end.lost = True
            self.forget(end)
