"""A TCP relay between a client and a service of the test, that hangs up when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["TcpRelay", "running_relay"]

CHUNK_BYTES = 64 * 1024


class TcpRelay:
    """Relays every connection to `target` (`host:port`); `address` is where it listens."""

    def __init__(self, target: str) -> None:
        self.address = ""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._tasks: set[asyncio.Task[None]] = set()

    def hang_up(self) -> None:
        """End all connections; new ones are taken."""
        for task in self._tasks:
            task.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either end closes it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            onward_reader, onward_writer = await asyncio.open_connection(self._host, self._port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(reader, onward_writer))
                    both.create_task(_pump(onward_reader, writer))
            finally:
                writer.close()
                onward_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def running_relay(target: str) -> AsyncIterator[TcpRelay]:
    """A relay on a free port of loopback until the block ends."""
    relay = TcpRelay(target)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    relay.address = f"{host}:{port}"
    async with server:
        try:
            yield relay
        finally:
            relay.hang_up()
            await asyncio.sleep(0)
