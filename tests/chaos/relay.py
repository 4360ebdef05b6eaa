"""What stands between clients and a gateway: slow for some, and cut after so many bytes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from enum import Enum

__all__ = ["Relay", "running_relay"]

CHUNK_BYTES = 16 * 1024
# Small buffers, so that a slow client is felt at the gateway.
RECEIVE_BYTES = 8 * 1024
SLOW_SHARE = 0.2
SLOW_CHUNK_BYTES = 600
SLOW_PAUSE_S = 0.01


class _End(Enum):
    FIN = "fin"
    RESET = "reset"


class _Passage:
    """One connection through the relay, and after how many more bytes it ends."""

    def __init__(self, rng: random.Random) -> None:
        self.slow = rng.random() < SLOW_SHARE
        self._rng = rng
        self._left: int | None = None
        self._writers: list[asyncio.StreamWriter] = []

    def cut_after(self, count: int) -> None:
        """Let so many bytes pass, in both directions together, and then no more."""
        self._left = count
        if count == 0:
            self._end()

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, down: bool
    ) -> None:
        """Copy one direction until it ends."""
        self._writers.append(writer)
        slow = self.slow and down
        while data := await reader.read(SLOW_CHUNK_BYTES if slow else CHUNK_BYTES):
            if self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            writer.write(data)
            if self._left == 0:
                self._end()
                return
            await writer.drain()
            if slow:
                await asyncio.sleep(SLOW_PAUSE_S)
        writer.close()

    def _end(self) -> None:
        # Reset: what was written may be lost. FIN: it arrives.
        how = self._rng.choice(list(_End))
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            if how is _End.RESET and sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()


class Relay:
    """Relays every connection to `target` (`host:port`, may be set later); listens at `address`."""

    def __init__(self, rng: random.Random) -> None:
        self.address = ""
        self.target = ""
        self._rng = rng
        self._passages: set[_Passage] = set()

    def cut(self, rng: random.Random, bytes_max: int) -> int:
        """Cut every connection, each after some bytes of its own; how many there were."""
        for passage in list(self._passages):
            passage.cut_after(rng.randint(0, bytes_max))
        return len(self._passages)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either end closes it."""
        host, _, port = self.target.rpartition(":")
        passage = _Passage(self._rng)
        self._passages.add(passage)
        try:
            onward = await asyncio.open_connection(host, int(port), limit=RECEIVE_BYTES)
            onward[1].get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES
            )
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(passage.carry(reader, onward[1], down=False))
                    both.create_task(passage.carry(onward[0], writer, down=True))
            finally:
                onward[1].close()
        except* (ConnectionError, OSError):
            pass
        finally:
            writer.close()
            self._passages.discard(passage)


@contextlib.asynccontextmanager
async def running_relay(rng: random.Random) -> AsyncIterator[Relay]:
    """A relay on a free port of loopback until the block ends."""
    relay = Relay(rng)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(relay.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    relay.address = f"{host}:{port}"
    try:
        yield relay
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
