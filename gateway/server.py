"""uvicorn as this gateway runs it: its own WebSocket class, and an end in good order (§3 `goaway`).

uvicorn closes every WebSocket with 1012 as soon as it begins to shut down. So it must not begin: a
signal drains the connections first, and only then tells uvicorn to go.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from gateway.config import GatewaySettings
from gateway.connections import Connections
from gateway.http_protocol import HEAD_WITHIN_S, http_protocol
from gateway.tls import Certificate
from gateway.tls_listener import TlsListener
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
        self,
        app: FastAPI,
        settings: GatewaySettings,
        connections: Connections,
        clock: Clock,
        certificate: Certificate | None = None,
    ) -> None:
        self._http = http_protocol(settings.connections_per_address, settings.proxies)
        super().__init__(
            uvicorn.Config(
                app,
                ws=socket_protocol(clock),
                ws_max_size=MESSAGE_BYTES_MAX,
                # Pings are the connection machine's, and deflate costs more than it saves here.
                ws_ping_interval=None,
                ws_ping_timeout=None,
                ws_per_message_deflate=False,
                http=self._http,
                # Who says in a header that he comes from somewhere else is believed only if he is
                # a proxy of ours; uvicorn's own default believes everybody on this machine.
                proxy_headers=bool(settings.proxies),
                forwarded_allow_ips=list(settings.proxies),
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=HTTP_GRACE_S,
            )
        )
        self._connections = connections
        self._grace_s = settings.drain_grace_s
        self._certificate = certificate

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Signals are the process's (`mesh.lifecycle`), not uvicorn's."""
        return nullcontext()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Nobody calls this: see `capture_signals`."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; as uvicorn does, but TLS has as little time as a request's head."""
        certificate = self._certificate
        if certificate is None:
            loop = asyncio.get_running_loop()
            self.servers = [
                await loop.create_server(self._protocol, sock=sock, backlog=BACKLOG)
                for sock in sockets or ()
            ]
        else:
            self.servers = [self._tls_listener(certificate, sock) for sock in sockets or ()]
        self.started = True

    def _tls_listener(self, certificate: Certificate, sock: socket.socket) -> Any:
        # As much of a server as uvicorn asks for: `close` and `wait_closed`.
        proxies = self._http.proxies
        listener = TlsListener(certificate.context, self._protocol, HEAD_WITHIN_S, proxies)
        listener.listen(sock, BACKLOG)
        return listener

    def _protocol(self) -> asyncio.Protocol:
        return self._http(config=self.config, server_state=self.server_state, app_state={})

    async def run_until(self, stop: asyncio.Event, sock: socket.socket) -> None:
        """Serve on the socket; when `stop` is set, part from every client and end."""
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self.serve([sock]))
            stopped = tasks.create_task(stop.wait())
            watching = tasks.create_task(self._watch_certificate())
            await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
            watching.cancel()
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

    async def _watch_certificate(self) -> None:
        if self._certificate is not None:
            await self._certificate.watch()
