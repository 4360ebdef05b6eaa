"""A TCP proxy that can delay both directions and hang up, for what a bad link does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["TcpProxy", "running_proxy"]

CHUNK_BYTES = 64 * 1024


class TcpProxy:
    """Passes bytes on to `target` after `delay_s` each way, in order."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.delay_s = 0.0
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._writers += (writer, far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await source.read(CHUNK_BYTES):
                # Each piece is as late as the last: the delay is a link's, not a rate's.
                loop.call_later(self.delay_s, sink.write, data)
        except OSError:
            pass
        finally:
            loop.call_later(self.delay_s, sink.close)

    def hang_up(self) -> None:
        """End all connections in order; new ones are taken."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def close(self) -> None:
        """Cut what is left."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        # A transport is closed at the next turn of the loop.
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def running_proxy(target: str) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
