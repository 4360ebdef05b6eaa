"""uvicorn as this gateway runs it: its own WebSocket class, and an end in good order (§3 `goaway`).

uvicorn closes every WebSocket with 1012 as soon as it begins to shut down. So it must not begin: a
signal drains the connections first, and only then tells uvicorn to go.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractContextManager, nullcontext
from types import FrameType

import uvicorn
from fastapi import FastAPI

from gateway.config import GatewaySettings
from gateway.connections import Connections
from gateway.http_protocol import HttpProtocol
from gateway.ws_protocol import socket_protocol
from mesh.clock import Clock
from mesh.settings import exit_with

__all__ = ["MESSAGE_BYTES_MAX", "GatewayServer", "bind"]

# A client message is at most 1 MiB (§1).
MESSAGE_BYTES_MAX = 1024 * 1024
BACKLOG = 2048
# What uvicorn has for HTTP requests that still run after the drain: time to be cancelled and billed.
HTTP_GRACE_S = 2
POLL_S = 0.05


def bind(host: str, port: int, *, shared: bool = False, listen: bool = True) -> socket.socket:
    """A socket; a port in use ends the process with one line that says so.

    A `shared` one listens beside others of the same user: the system spreads connections over them.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        if listen:
            sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        reason = error.strerror or "the system refused"
        exit_with(f"cannot listen on {host}:{port} ({reason}): choose another with --port")
    return sock


class GatewayServer(uvicorn.Server):
    """Serves `app` until told to drain."""

    def __init__(
        self, app: FastAPI, settings: GatewaySettings, connections: Connections, clock: Clock
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ws=socket_protocol(clock),
                ws_max_size=MESSAGE_BYTES_MAX,
                # Pings are the connection machine's, and deflate costs more than it saves here.
                ws_ping_interval=None,
                ws_ping_timeout=None,
                ws_per_message_deflate=False,
                http=HttpProtocol,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=HTTP_GRACE_S,
            )
        )
        self._connections = connections
        self._grace_s = settings.drain_grace_s

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Signals are the process's (`mesh.lifecycle`), not uvicorn's."""
        return nullcontext()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Nobody calls this: see `capture_signals`."""

    async def run_until(self, stop: asyncio.Event, sock: socket.socket) -> None:
        """Serve on the socket; when `stop` is set, part from every client and end."""
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self.serve([sock]))
            stopped = tasks.create_task(stop.wait())
            await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                stopped.cancel()
                return
            for server in self.servers:
                server.close()
            loop = asyncio.get_running_loop()
            end_at = loop.time() + self._grace_s
            await self._connections.drain(self._grace_s)
            # Answers over HTTP can be resumed nowhere: they finish, as simple clients' streams do.
            while self.server_state.tasks and loop.time() < end_at:  # noqa: ASYNC110 - no event
                await asyncio.sleep(POLL_S)
            self.should_exit = True
