"""What a load balancer is told: HAProxy's `agent-check`, one line for each connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.connections import Connections
from gateway.handshakes import Handshakes
from mesh.clock import Clock
from mesh.settings import exit_with

__all__ = ["agent_answer", "serving_agent"]


def agent_answer(connections: Connections, handshakes: Handshakes, now: float) -> str:
    """`drain` once this gateway parts from its clients; else the percentage of its configured weight."""
    return "drain" if connections.draining else f"up ready {handshakes.share(now)}%"


@asynccontextmanager
async def serving_agent(
    host: str, port: int, connections: Connections, handshakes: Handshakes, clock: Clock
) -> AsyncIterator[None]:
    """Answer on `host:port` inside the block; port 0: there is no agent."""
    if not port:
        yield
        return

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = agent_answer(connections, handshakes, clock.monotonic())
        writer.write(f"{line}\n".encode())
        writer.close()

    try:
        server = await asyncio.start_server(answer, host, port)
    except OSError as error:
        reason = error.strerror or "the system refused"
        exit_with(f"cannot listen on {host}:{port} ({reason}): choose another with --agent-port")
    try:
        yield
    finally:
        server.close()
